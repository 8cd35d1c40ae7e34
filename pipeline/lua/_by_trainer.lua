-- Only a trainer. Redis itself refuses this to any other of the users of docker/users.acl, and with it the transition,
-- before its first write. (A name that joined last is asked for besides, by _trainer.lua.)
redis.call('EXISTS', RUN .. ':trainers')
