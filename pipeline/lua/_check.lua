if trouble() then return reply(trouble()) end
