SELECT date_bin(%(bucket)s, time, TIMESTAMPTZ '2020-01-01 00:00:00+00') AS start, version,
       count(*), count(*) FILTER (WHERE status >= 500),
       percentile_disc(0.5) WITHIN GROUP (ORDER BY total_us), percentile_disc(0.99) WITHIN GROUP (ORDER BY total_us)
FROM inference_log
WHERE model = %(model)s
  AND version = ANY(%(versions)s)
  AND team_id = ANY(%(team_ids)s)
  AND time >= %(since)s
  AND time < %(until)s
GROUP BY 1, 2
ORDER BY 1, 2
