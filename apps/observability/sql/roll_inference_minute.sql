INSERT INTO inference_minute
    (time, node_id, team_id, model, version, requests, errors, slow_500ms, latency_us_sum)
SELECT late.minute, made.*
FROM unnest(%(minutes)s::timestamptz[]) AS late (minute)
CROSS JOIN LATERAL (
    SELECT node_id, team_id, model, version, count(*)::integer, (count(*) FILTER (WHERE status >= 500))::integer,
           (count(*) FILTER (WHERE total_us > 500000))::integer, sum(total_us)
    FROM inference_log
    WHERE time >= late.minute
      AND time < late.minute + INTERVAL '1 minute'
    GROUP BY node_id, team_id, model, version
) AS made
ON CONFLICT (model, time, node_id, version, team_id) DO UPDATE SET
    requests = excluded.requests, errors = excluded.errors, slow_500ms = excluded.slow_500ms,
    latency_us_sum = excluded.latency_us_sum
