// What a sandbox may reach, as the SDK's network options say it, and what is set in its
// requests. SECURE and OTHER are addresses of servers, the first by HTTPS as example.com.
// Writes one line of JSON for each thing that was tried.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { request } from 'node:http'
import { ALL_TRAFFIC, Sandbox } from 'e2b'

const { SECURE, OTHER, E2B_SANDBOX_URL } = process.env
const secret = 'Bearer a-secret-of-the-client'
const digest = (text) => createHash('sha256').update(text).digest('hex')
const host = `example.com:${SECURE.split(':')[1]}`
const rules = (value) => ({ [host]: [{ transform: { headers: { Authorization: value, 'X-Plain': 'plain' } } }] })
const network = { allowOut: [SECURE, 'example.com'], denyOut: [ALL_TRAFFIC], rules: rules(secret) }
const made = []
let box

async function create(opts) {
  made.push(await Sandbox.create('base', opts))
  return made.at(-1)
}

// get asks from inside, as a program that brings an authorization of its own.
const program = `import sys, urllib.request
print(urllib.request.urlopen(urllib.request.Request(sys.argv[1], headers={'Authorization': 'mine'}), timeout=20).read().decode())`
const get = async (from, url) => JSON.parse((await from.commands.run(`python3 -c "$PROGRAM" ${url}`, { envs: { PROGRAM: program } })).stdout)
const refused = (from, url) => assert.rejects(get(from, url), { name: 'CommandExitError' })
const answer = { host, authorization: digest(secret), plain: 'plain' }

// knows looks for the secret where programs could find it.
const find = 'env; cat /proc/self/environ /etc/sandpit/* /run/e2b/.E2B* 2>/dev/null'
async function isSecret(from) {
  const seen = JSON.stringify([(await from.commands.run(find)).stdout, await Sandbox.getInfo(from.sandboxId)])
  assert.ok(!seen.includes('a-secret'), seen)
}

// viewed asks a port of a sandbox from outside.
const viewed = (from, headers) => new Promise((resolve, reject) => {
  const ids = { 'E2b-Sandbox-Id': from.sandboxId, 'E2b-Sandbox-Port': '8000' }
  request(E2B_SANDBOX_URL, { headers: { ...ids, ...headers } }, async (res) => {
    let body = ''
    for await (const part of res) body += part
    resolve({ status: res.statusCode, body })
  }).on('error', reject).end()
})
const mirror = `import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(self.headers['Host'].encode())
http.server.ThreadingHTTPServer(('', 8000), H).serve_forever()`

const checks = {
  'headers of rules are set in requests by HTTPS, and nobody inside sees them': async () => {
    box = await create({ network })
    assert.deepEqual(await get(box, `https://${host}/`), answer)
    await isSecret(box)
    const info = await box.getInfo()
    assert.deepEqual([info.network.allowOut, info.network.denyOut], [network.allowOut, [ALL_TRAFFIC]])
  },
  'what is not allowed is refused': async () => {
    await refused(box, `http://${OTHER}/`)
    await refused(box, 'http://example.org/')
    const closed = await create({ network: { denyOut: [ALL_TRAFFIC] } })
    await refused(closed, `https://${host}/`)
    const denied = await create({ network: { denyOut: [SECURE.split(':')[0]] } })
    await refused(denied, `https://${host}/`)
  },
  'allowOut opens of this machine what it names': async () => {
    const open = await create({ network: { allowOut: [OTHER], denyOut: [ALL_TRAFFIC] } })
    assert.equal((await get(open, `http://${OTHER}/`)).authorization, digest('mine'))
    await refused(open, `https://${SECURE}/`)
  },
  'rules last as long as memory is kept, and are replaced': async () => {
    await box.pause()
    await box.connect()
    assert.deepEqual(await get(box, `https://${host}/`), answer)
    const [twin] = await box.fork()
    made.push(twin)
    await refused(twin, `https://${host}/`) // values are the sandbox's alone; nothing is sent without them
    await box.updateNetwork({ ...network, rules: rules('another') })
    assert.equal((await get(box, `https://${host}/`)).authorization, digest('another'))
    await box.updateNetwork({ ...network, rules: undefined })
    assert.equal((await get(box, `https://${host}/`)).authorization, digest('mine'))
    await box.updateNetwork(network)
    assert.deepEqual(await get(box, `https://${host}/`), answer)
  },
  'without memory their values are gone, and requests fail till they are given again': async () => {
    await box.pause({ keepMemory: false })
    await box.connect()
    const failed = await get(box, `https://${host}/`).catch((e) => e)
    assert.match(failed.stderr, /HTTP Error 50\d/, failed.stderr)
    await isSecret(box)
    await box.updateNetwork(network)
    assert.deepEqual(await get(box, `https://${host}/`), answer)
  },
  'ports need a token if they are private, and programs see another host': async () => {
    const shown = await create({ network: { allowPublicTraffic: false, maskRequestHost: 'inside.example:${PORT}' } })
    await shown.commands.run('python3 -c "$PROGRAM"', { background: true, timeoutMs: 0, envs: { PROGRAM: mirror } })
    const token = { 'e2b-traffic-access-token': shown.trafficAccessToken }
    for (const end = Date.now() + 20_000; (await viewed(shown, token)).status !== 200;) assert.ok(Date.now() < end)
    assert.deepEqual(await viewed(shown, token), { status: 200, body: 'inside.example:8000' })
    assert.equal((await viewed(shown, {})).status, 403)
    assert.equal((await viewed(shown, { 'e2b-traffic-access-token': 'wrong' })).status, 403)
  },
}

for (const [name, check] of Object.entries(checks)) {
  const error = await check().then(() => '', (e) => `${e.stack}`)
  console.log(JSON.stringify({ name, error }))
}
await Promise.allSettled(made.map((b) => b.kill()))
