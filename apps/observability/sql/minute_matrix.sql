SELECT string_agg(
    int4send((date_part('epoch', time) / 60)::integer) || int4send(gpu) || float4send({value}), ''::bytea)
FROM gpu_minute
WHERE gpu = ANY(%(gpus)s)
  AND time >= %(since)s
  AND time < %(until)s
  AND {present}
