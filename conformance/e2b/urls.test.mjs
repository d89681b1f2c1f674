// Signed URLs, with which whoever has one reads or writes one file.
import assert from 'node:assert/strict'
import { sharedSandbox, test } from './sandbox.mjs'

const shared = sharedSandbox()
const files = () => shared.box.files

test('downloadUrl', async () => {
  await files().write('signed/päth with space.txt', 'for the browser')
  for (const opts of [undefined, { useSignatureExpiration: 60 }, { user: 'user' }, { user: 'user', useSignatureExpiration: 60 }]) {
    const res = await fetch(await shared.box.downloadUrl('signed/päth with space.txt', opts))
    assert.equal(res.status, 200, await res.clone().text())
    assert.match(res.headers.get('content-disposition'), /^inline/)
    assert.equal(await res.text(), 'for the browser')
  }
  const roots = await shared.box.downloadUrl('.bashrc', { user: 'root' })
  assert.equal((await fetch(roots)).status, 200)
})

test('downloadUrl and a range', async () => {
  await files().write('signed/range', '0123456789')
  const res = await fetch(await shared.box.downloadUrl('signed/range'), { headers: { Range: 'bytes=2-4' } })
  assert.equal(res.status, 206)
  assert.equal(res.headers.get('content-range'), 'bytes 2-4/10')
  assert.equal(await res.text(), '234')
})

test('downloadUrl of what is missing', async () => {
  const res = await fetch(await shared.box.downloadUrl('/no/such/file'))
  assert.equal(res.status, 404)
  assert.equal((await res.json()).code, 404)
})

test('a URL that has expired', async () => {
  await files().write('signed/late', 'x')
  for (const [method, url] of [
    ['GET', await shared.box.downloadUrl('signed/late', { useSignatureExpiration: -10 })],
    ['POST', await shared.box.uploadUrl('signed/late', { useSignatureExpiration: -10 })],
  ]) {
    const res = await fetch(url, { method, body: method === 'POST' ? form('changed') : undefined })
    assert.equal(res.status, 401)
    assert.deepEqual(await res.json(), { code: 401, message: 'signature is already expired' })
  }
  assert.equal(await files().read('signed/late'), 'x')
})

test('a URL that was changed', async () => {
  await files().write([{ path: 'signed/a', data: 'a' }, { path: 'signed/b', data: 'b' }])
  const given = await shared.box.downloadUrl('signed/a', { useSignatureExpiration: 60 })
  for (const [name, value] of [['path', 'signed/b'], ['username', 'root'], ['signature_expiration', '9999999999'], ['signature', 'v1_x']]) {
    const url = new URL(given)
    url.searchParams.set(name, value)
    const res = await fetch(url)
    assert.equal(res.status, 401, name)
    assert.equal((await res.json()).code, 401, name)
  }
  const upload = await fetch(given, { method: 'POST', body: form('changed') })
  assert.equal(upload.status, 401, 'a URL to read is none to write')
  assert.equal(await files().read('signed/a'), 'a')
})

test('uploadUrl', async () => {
  for (const opts of [undefined, { useSignatureExpiration: 60 }, { user: 'user' }]) {
    const res = await fetch(await shared.box.uploadUrl('signed/up/loaded.txt', opts), { method: 'POST', body: form('by form') })
    assert.equal(res.status, 200, await res.clone().text())
    assert.deepEqual(await res.json(), [{ name: 'loaded.txt', path: '/home/user/signed/up/loaded.txt', type: 'file' }])
    assert.equal(await files().read('signed/up/loaded.txt'), 'by form')
    assert.equal((await files().getInfo('signed/up/loaded.txt')).owner, 'user')
    await files().remove('signed/up')
  }
})

test('uploadUrl without a path', async () => {
  const res = await fetch(await shared.box.uploadUrl(), { method: 'POST', body: form('by name', 'signed/by name.txt') })
  assert.equal(res.status, 200, await res.clone().text())
  assert.equal(await files().read('/home/user/signed/by name.txt'), 'by name')
})

test('without token and signature', async () => {
  const url = new URL('/files?path=/etc/passwd', process.env.E2B_SANDBOX_URL)
  const res = await fetch(url, { headers: { 'E2b-Sandbox-Id': shared.box.sandboxId, 'E2b-Sandbox-Port': '49983' } })
  assert.equal(res.status, 401)
  assert.deepEqual(await res.json(), {
    code: 401, message: 'unauthorized access, please provide a valid access token or method signing if supported',
  })
})

function form(content, name = 'ignored.txt') {
  const data = new FormData()
  data.append('file', new Blob([content]), name)
  return data
}
