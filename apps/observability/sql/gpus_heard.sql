SELECT number
FROM fleet_gpu
WHERE EXISTS (SELECT FROM gpu_sample WHERE gpu = number AND time >= %(since)s)
