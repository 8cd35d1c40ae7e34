-- A worker incarnation, and its stream of payloads.
--
-- hr:{run}:worker:<incarnation>           lease, drain, last_id (newest stream id)
-- hr:{run}:worker:<incarnation>:entries   its entries in flight -> reserved_ms
-- hr:{run}:trajectories:<incarnation>     the payloads that are still needed
local function worker_key(worker) return RUN .. ':worker:' .. worker end
local function stream_key(worker) return RUN .. ':trajectories:' .. worker end

-- a dead incarnation's stream goes when nothing in it is needed
local function forget_worker(worker)
  if redis.call('ZSCORE', WORKERS, worker) then return end
  if redis.call('XLEN', stream_key(worker)) > 0 then return end
  redis.call('DEL', stream_key(worker), worker_key(worker), worker_key(worker) .. ':entries')
end
