SELECT version, node_id, count(*), count(*) FILTER (WHERE status >= 500), min(time), max(time),
       percentile_disc(0.5) WITHIN GROUP (ORDER BY total_us), percentile_disc(0.99) WITHIN GROUP (ORDER BY total_us)
FROM inference_log
WHERE model = %(model)s
  AND version = ANY(%(versions)s)
  AND time >= %(since)s
GROUP BY version, node_id
ORDER BY version, node_id
