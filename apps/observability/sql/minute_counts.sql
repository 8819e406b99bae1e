SELECT date_trunc('minute', time) AS minute, version, count(*), count(*) FILTER (WHERE status >= 500),
       count(*) FILTER (WHERE status < 500 AND total_us <= %(slo_us)s)
FROM inference_log
WHERE model = %(model)s
  AND node_id = ANY(%(node_ids)s)
  AND time >= %(since)s
  AND time < %(until)s
GROUP BY 1, 2
ORDER BY 1, 2
