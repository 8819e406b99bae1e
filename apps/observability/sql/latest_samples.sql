SELECT newest.*
FROM unnest(%(gpus)s::integer[]) AS wanted (gpu)
CROSS JOIN LATERAL (
    SELECT gpu, time, simulated, ARRAY[{values}]
    FROM gpu_sample
    WHERE gpu_sample.gpu = wanted.gpu
      AND time >= %(since)s
    ORDER BY time DESC
    LIMIT 1
) AS newest
