SELECT log.version, log.predicted_label, log.score, feedback.label
FROM inference_log AS log
JOIN observability_feedback AS feedback
  ON feedback.team_id = log.team_id AND feedback.request_id = log.request_id
WHERE log.model = %(model)s
  AND log.version = ANY(%(versions)s)
  AND log.time >= %(since)s
  AND log.score IS NOT NULL
ORDER BY log.received_at, log.time, log.request_id
