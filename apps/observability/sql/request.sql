SELECT time, request_id, model, version, node_id, encode(digest, 'hex'), deployment_id, status, error_code,
       batch_size, queue_us, preprocess_us, compute_us, postprocess_us, total_us, entropy, score, predicted_label
FROM inference_log
WHERE request_id = %(request_id)s
  AND team_id = ANY(%(team_ids)s)
ORDER BY time
LIMIT 20
