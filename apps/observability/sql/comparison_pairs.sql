-- in order of arrival, which late batches of a spool can't change
SELECT received_at, time, request_id, node_id, batch_size, similarity, baseline_us, candidate_us,
       baseline_status, candidate_status, sample, dropped_before
FROM comparison
WHERE rollout_id = %(rollout_id)s
  AND stage = %(stage)s
  AND attempt = %(attempt)s
  AND time >= %(since)s
  AND (%(node_ids)s::uuid[] IS NULL OR node_id = ANY(%(node_ids)s::uuid[]))
ORDER BY received_at, time, request_id
