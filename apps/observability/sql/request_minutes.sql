SELECT date_trunc('minute', time), node_id, team_id, model, version, count(*)::integer,
       (count(*) FILTER (WHERE status >= 500))::integer, (count(*) FILTER (WHERE total_us > 500000))::integer,
       sum(total_us)
FROM inference_log
WHERE time >= %(since)s
  AND time < %(until)s
  AND (%(model)s::text IS NULL OR model = %(model)s::text)
  AND (%(node_ids)s::uuid[] IS NULL OR node_id = ANY(%(node_ids)s::uuid[]))
GROUP BY 1, 2, 3, 4, 5
ORDER BY 1, 4, 5, 2
