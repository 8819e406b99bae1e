SELECT received_at, time, request_id, node_id, batch_size, similarity, baseline_us, candidate_us,
       baseline_status, candidate_status, sample, dropped_before
FROM comparison
WHERE rollout_id = %(rollout_id)s
  AND stage = %(stage)s
  AND attempt = %(attempt)s
  AND time >= %(since)s
  AND similarity IS NOT NULL
ORDER BY similarity, time
LIMIT %(limit)s
