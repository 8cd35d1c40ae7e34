-- Only the coordinator, and who acts in its place, as a person does. Redis itself refuses this to any other of the users
-- of docker/users.acl, and with it the transition, before its first write.
redis.call('EXISTS', RUN .. ':launcher')
