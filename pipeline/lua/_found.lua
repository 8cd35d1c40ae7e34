-- What most transitions read of the run; Reserve and Occupy each read a little more.
local found = redis.call('HMGET', RUN, 'rules', 'joined', 'version', 'head', 'window', 'clock')
