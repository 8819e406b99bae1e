-- in order of arrival, which late batches of a spool can't change
SELECT log.received_at, log.time, log.request_id, log.version, log.node_id, log.batch_size, log.status, log.error_code,
       log.total_us, log.entropy, log.score, log.predicted_label, feedback.label
FROM inference_log AS log
LEFT JOIN observability_feedback AS feedback
  ON feedback.team_id = log.team_id AND feedback.request_id = log.request_id
WHERE log.model = %(model)s
  AND log.version = ANY(%(versions)s)
  AND log.node_id = ANY(%(node_ids)s)
  AND log.time >= %(since)s
  AND log.time < %(until)s
ORDER BY log.received_at, log.time, log.request_id
