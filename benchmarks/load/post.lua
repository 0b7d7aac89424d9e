-- wrk script: POST one body again and again.
-- Arguments: file, length of the JSON head or 0, "unique" for a traceparent that never repeats.
function init(args)
  local file = assert(io.open(args[1], "rb"))
  wrk.method = "POST"
  wrk.body = file:read("*a")
  file:close()
  wrk.headers["Content-Type"] = "application/json"
  if args[2] ~= "0" then
    wrk.headers["Content-Type"] = "application/octet-stream"
    wrk.headers["Inference-Header-Content-Length"] = args[2]
  end
  if args[3] ~= "unique" then
    local request = wrk.format()
    wrk.request = function() return request end
    return
  end
  local mark = "00-" .. string.rep("0", 32) .. "-" .. string.rep("0", 16) .. "-01"
  wrk.headers["traceparent"] = mark
  local request = wrk.format()
  local from, to = string.find(request, mark, 1, true)
  local before, after = string.sub(request, 1, from - 1), string.sub(request, to + 1)
  local random = math.random
  math.randomseed(os.time())
  wrk.request = function()
    return before .. string.format("00-%08x%08x%08x%08x-%08x%08x-01", random(0, 2147483647),
      random(0, 2147483647), random(0, 2147483647), random(0, 2147483647),
      random(0, 2147483647), random(0, 2147483647)) .. after
  end
end

function done(summary, latency, requests)
  local errors = summary.errors
  local bad = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format(
    'RESULT {"requests": %d, "seconds": %.6f, "errors": %d, "p50_us": %d, "p99_us": %d, "p999_us": %d}\n',
    summary.requests, summary.duration / 1e6, bad,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9)))
end
