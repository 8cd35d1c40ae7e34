-- Only a worker. Redis itself refuses this to any other of the users of docker/users.acl, and with it the transition,
-- before its first write. (Reserve and Occupy have no need of it: their first writes are refused to all others.)
redis.call('EXISTS', RUN .. ':workers')
