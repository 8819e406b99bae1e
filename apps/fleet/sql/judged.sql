-- What every node of the teams is, judged once; the first that holds is shown (the order of grid.HEALTH).
-- A GPU's health as a number, worse is more: 0 unknown, 1 ok, 2 throttled, 3 hot, 4 xid, 5 lost (grid.RANKS).
WITH host AS MATERIALIZED (
    SELECT n.id, n.zone, n.name, n.phase,
           COALESCE(n.last_seen_at, n.created_at) < %(now)s - %(polls)s * p.poll_interval_s * INTERVAL '1 second' AS silent
    FROM fleet_node n JOIN fleet_pool p ON p.id = n.pool_id
    WHERE n.team_id = ANY(%(teams)s::uuid[])
), gpus AS MATERIALIZED (
    SELECT node_id, count(*) AS count, bool_or(simulated) AS simulated,
           max(CASE health WHEN 'ok' THEN 1 WHEN 'unknown' THEN 0 WHEN 'throttled' THEN 2 WHEN 'hot' THEN 3
                           WHEN 'xid' THEN 4 ELSE 5 END) AS worst
    FROM fleet_gpu GROUP BY node_id
), told AS MATERIALIZED (  -- what the node says of its hardware as a whole
    SELECT c.node_id, max(s.rank) AS worst
    FROM fleet_condition c JOIN unnest(%(sick_types)s::text[], %(sick_ranks)s::int[]) AS s(type, rank) ON s.type = c.type
    WHERE c.status = 'true' GROUP BY c.node_id
), failed AS MATERIALIZED (
    SELECT DISTINCT r.node_id FROM fleet_reporteddeployment r JOIN fleet_desireddeployment d ON d.id = r.deployment_id
    WHERE r.state = 'failed'
), busy AS MATERIALIZED (
    SELECT DISTINCT node_id FROM fleet_reporteddeployment WHERE state = 'running'
), facts AS MATERIALIZED (
    SELECT host.*, COALESCE(gpus.count, 0) AS gpus, COALESCE(gpus.simulated, FALSE) AS simulated,
           -- that the node is hot says nothing about which GPU is: only where no GPU of it is known to be
           CASE WHEN gpus.worst > 1 THEN NULL ELSE told.worst END AS told,
           gpus.worst, failed.node_id IS NOT NULL AS failed, busy.node_id IS NOT NULL AS busy
    FROM host LEFT JOIN gpus ON gpus.node_id = host.id LEFT JOIN told ON told.node_id = host.id
    LEFT JOIN failed ON failed.node_id = host.id LEFT JOIN busy ON busy.node_id = host.id
), cell AS (
    {cells}
), judged AS (
    SELECT zone, name, gpu, gpus, simulated,
           CASE WHEN phase IN ('banned', 'quarantined', 'rejected', 'pending') THEN phase
                WHEN ill = 5 THEN 'lost'
                WHEN ill = 4 THEN 'xid'
                WHEN silent THEN 'away'
                WHEN ill = 3 THEN 'hot'
                WHEN failed THEN 'failed'
                WHEN phase IN ('cordoned', 'draining') THEN phase
                WHEN ill = 2 THEN 'throttled'
                WHEN ill = 0 THEN 'silent'
                WHEN busy THEN 'serving'
                ELSE 'idle' END AS health
    FROM cell
)
{asked}
