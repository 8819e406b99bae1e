SELECT time, node_id, team_id, model, version, requests, errors, slow_500ms, latency_us_sum
FROM inference_minute
WHERE time >= %(since)s
  AND time < LEAST(%(until)s, %(rolled)s)
  AND (%(model)s::text IS NULL OR model = %(model)s::text)
  AND (%(node_ids)s::uuid[] IS NULL OR node_id = ANY(%(node_ids)s::uuid[]))
  AND (%(team_ids)s::uuid[] IS NULL OR team_id = ANY(%(team_ids)s::uuid[]))
UNION ALL
SELECT date_bin('1 minute', time, TIMESTAMPTZ '2000-01-01 00:00:00+00'), node_id, team_id, model, version,
       count(*)::integer, (count(*) FILTER (WHERE status >= 500))::integer,
       (count(*) FILTER (WHERE total_us > 500000))::integer, sum(total_us)
FROM inference_log
WHERE time >= GREATEST(%(since)s, %(rolled)s)
  AND time < %(until)s
  AND (%(model)s::text IS NULL OR model = %(model)s::text)
  AND (%(node_ids)s::uuid[] IS NULL OR node_id = ANY(%(node_ids)s::uuid[]))
  AND (%(team_ids)s::uuid[] IS NULL OR team_id = ANY(%(team_ids)s::uuid[]))
GROUP BY 1, 2, 3, 4, 5
ORDER BY 1, 4, 5, 2
