// Ports, as the SDK documents previews.
import assert from 'node:assert/strict'
import dns from 'node:dns'
import http from 'node:http'
import { create, failure, sharedSandbox, test, until } from './sandbox.mjs'

const shared = sharedSandbox()

// get requests a URL, whose name below localhost is this machine's, and returns status and body.
function get(url, headers = {}) {
  const lookup = (name, opts, done) => dns.lookup(name.endsWith('.localhost') ? '127.0.0.1' : name, opts, done)
  return new Promise((resolve, reject) => {
    const req = http.get(url, { headers, lookup, agent: false }, (res) => {
      let body = ''
      res.setEncoding('utf8').on('data', (s) => { body += s }).on('end', () => resolve({ status: res.statusCode, headers: res.headers, body }))
    })
    req.on('error', reject)
  })
}

// serve starts a web server at a port of a sandbox.
async function serve(box, port) {
  await box.fs.uploadFile(Buffer.from('a page'), '/srv/www/index.html')
  await box.process.createSession(`web-${port}`)
  await box.process.executeSessionCommand(`web-${port}`, { command: `cd /srv/www && python3 -m http.server ${port}`, runAsync: true })
  await until('the server', async () => (await box.process.executeCommand(`python3 -c "import socket; socket.create_connection(('127.0.0.1', ${port}))"`)).exitCode === 0)
}

test('a private port needs its token: header, query, cookie', async () => {
  const { box } = shared
  await serve(box, 3000)
  const { url, token } = await box.getPreviewLink(3000)
  assert.ok(new URL(url).host.startsWith(`3000-${box.id}.`), url)
  assert.deepEqual([(await get(url)).status, (await get(url, { 'x-daytona-preview-token': 'wrong' })).status], [401, 401])
  const page = await get(`${url}/index.html`, { 'x-daytona-preview-token': token })
  assert.deepEqual([page.status, page.body], [200, 'a page'])
  assert.equal((await get(`${url}/index.html?DAYTONA_SANDBOX_AUTH_KEY=${token}`)).body, 'a page')
  const cookie = { Cookie: `daytona-sandbox-auth-${box.id}=${token}`, 'Sec-Fetch-Site': 'same-origin' }
  assert.equal((await get(`${url}/index.html`, cookie)).body, 'a page')
  const visit = await get(`${url}/index.html?DAYTONA_SANDBOX_AUTH_KEY=${token}`, { Accept: 'text/html' })
  assert.deepEqual([visit.status, visit.headers.location], [303, '/index.html'])
  const own = visit.headers['set-cookie'][0].split(';')[0]
  assert.equal((await get(`${url}/index.html`, { Cookie: own, 'Sec-Fetch-Site': 'same-origin' })).body, 'a page')
})

test('a signed URL needs nothing else, until it expires', async () => {
  const { box } = shared
  const { url, token, port } = await box.getSignedPreviewUrl(3000, 600)
  assert.equal(port, 3000)
  assert.ok(new URL(url).host.startsWith(`3000-${token}.`), url)
  assert.equal((await get(`${url}/index.html`)).body, 'a page')
  const other = await box.getSignedPreviewUrl(3000)
  await box.expireSignedPreviewUrl(3000, token)
  assert.equal((await get(`${url}/index.html`)).status, 401)
  assert.equal((await get(`${other.url}/index.html`)).body, 'a page')
  await failure(box.expireSignedPreviewUrl(3000, token), 'DaytonaNotFoundError', 404)
  await failure(box.getSignedPreviewUrl(3000, 86401), 'DaytonaValidationError', 400)
})

test('a public sandbox needs no token, except at reserved ports', async () => {
  const box = await create({ public: true })
  assert.equal(box.public, true)
  await serve(box, 3000)
  await serve(box, 22222)
  const { url } = await box.getPreviewLink(3000)
  assert.equal((await get(`${url}/index.html`)).body, 'a page')
  const reserved = await box.getPreviewLink(22222)
  assert.equal((await get(`${reserved.url}/index.html`)).status, 401)
  assert.equal((await get(`${reserved.url}/index.html`, { 'x-daytona-preview-token': reserved.token })).body, 'a page')
})

test('a token of a page does not open the toolbox; that of port 1 does', async () => {
  const { box } = shared
  const run = (token) =>
    fetch(`${box.toolboxProxyUrl.replace(/\/$/, '')}/${box.id}/process/execute?DAYTONA_SANDBOX_AUTH_KEY=${token}`, {
      method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ command: 'echo in' }),
    })
  assert.equal((await run((await box.getPreviewLink(3000)).token)).status, 401)
  const res = await run((await box.getPreviewLink(1)).token)
  assert.equal(res.status, 200)
  assert.equal((await res.json()).result, 'in\n')
})

test('a port that is no port', async () => {
  await failure(shared.box.getPreviewLink(0), 'DaytonaValidationError', 400)
  await failure(shared.box.getPreviewLink(65536), 'DaytonaValidationError', 400)
})
