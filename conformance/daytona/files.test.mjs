// Files, as the SDK documents them.
import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { failure, sharedSandbox, test } from './sandbox.mjs'

const shared = sharedSandbox()
const sum = (bytes) => createHash('sha256').update(bytes).digest('hex')

test('a small file, up and down', async () => {
  const { fs } = shared.box
  await fs.uploadFile(Buffer.from('é\u0000€'), '/tmp/small/of text.txt')
  assert.equal((await fs.downloadFile('/tmp/small/of text.txt')).toString(), 'é\u0000€')
  await fs.uploadFile(Buffer.from('new'), '/tmp/small/of text.txt')
  assert.equal((await fs.downloadFile('/tmp/small/of text.txt')).toString(), 'new')
})

test('a relative path is below the working directory', async () => {
  const { fs } = shared.box
  await fs.uploadFile(Buffer.from('here'), 'relative.txt')
  const at = `${await shared.box.getWorkDir()}/relative.txt`
  assert.equal((await fs.downloadFile(at)).toString(), 'here')
})

test('10 MB, up and down', async () => {
  const { fs, process } = shared.box
  const bytes = randomBytes(10 << 20)
  await fs.uploadFile(bytes, '/tmp/large')
  assert.equal((await process.executeCommand('sha256sum < /tmp/large')).result.slice(0, 64), sum(bytes))
  assert.equal(sum(await fs.downloadFile('/tmp/large')), sum(bytes))
})

test('from and to files of the client', async () => {
  const { fs } = shared.box
  const dir = await mkdtemp(join(tmpdir(), 'sandpit-daytona-'))
  try {
    await writeFile(join(dir, 'from'), 'local')
    await fs.uploadFile(join(dir, 'from'), '/tmp/local')
    await fs.downloadFile('/tmp/local', join(dir, 'below', 'to'))
    assert.equal(await readFile(join(dir, 'below', 'to'), 'utf8'), 'local')
  } finally {
    await rm(dir, { recursive: true })
  }
})

test('many files, up and down', async () => {
  const { fs } = shared.box
  const files = Array.from({ length: 50 }, (_, n) => ({ source: Buffer.from(`file ${n}`), destination: `/tmp/many/d${n % 5}/f${n}` }))
  await fs.uploadFiles(files)
  const got = await fs.downloadFiles(files.map(({ destination }) => ({ source: destination })))
  assert.deepEqual(got.map((g) => g.result.toString()), files.map((f) => f.source.toString()))
})

test('a missing file among others', async () => {
  const { fs } = shared.box
  await fs.uploadFile(Buffer.from('there'), '/tmp/there')
  const [there, missing] = await fs.downloadFiles([{ source: '/tmp/there' }, { source: '/tmp/missing' }])
  assert.equal(there.result.toString(), 'there')
  assert.equal(missing.result, undefined)
  assert.equal(missing.errorDetails.statusCode, 404)
  assert.equal(missing.errorDetails.code ?? missing.errorDetails.errorCode, 'FILE_NOT_FOUND')
})

test('streams, up and down', async () => {
  const { fs } = shared.box
  const bytes = randomBytes(3 << 20)
  let sent = 0
  await fs.uploadFileStream(Readable.from([bytes.subarray(0, 1000), bytes.subarray(1000)]), '/tmp/stream', { onProgress: (p) => { sent = p.bytesSent } })
  assert.equal(sent, bytes.length)
  const parts = []
  for await (const part of await fs.downloadFileStream('/tmp/stream')) parts.push(part)
  assert.equal(sum(Buffer.concat(parts)), sum(bytes))
})

test('directories: create, list, depth, details, move, delete', async () => {
  const { fs, process } = shared.box
  await fs.createFolder('/tmp/dir', '750')
  const made = await fs.getFileDetails('/tmp/dir')
  assert.deepEqual([made.name, made.isDir, made.permissions], ['dir', true, '0750'])
  await fs.createFolder('/tmp/dir/below', '755')
  await fs.uploadFile(Buffer.from('12345'), '/tmp/dir/file')
  await process.executeCommand('chmod 640 /tmp/dir/file; echo deep > /tmp/dir/below/deep')
  const list = await fs.listFiles('/tmp/dir')
  assert.deepEqual(list.map((f) => [f.name, f.isDir]).sort(), [['below', true], ['file', false]])
  const file = list.find((f) => f.name === 'file')
  assert.deepEqual([file.size, file.permissions, file.owner, file.group], [5, '0640', 'root', 'root'])
  assert.match(file.mode, /^-rw-r-----$/)
  assert.ok(Math.abs(Date.now() - Date.parse(file.modifiedAt)) < 60_000, file.modifiedAt)
  const deep = await fs.listFiles('/tmp/dir', { depth: 2 })
  assert.ok(deep.some((f) => f.name.endsWith('deep') || f.path?.endsWith('/below/deep')), JSON.stringify(deep))
  await fs.moveFiles('/tmp/dir/file', '/tmp/dir/moved')
  assert.equal((await fs.downloadFile('/tmp/dir/moved')).toString(), '12345')
  await failure(fs.getFileDetails('/tmp/dir/file'), 'DaytonaFileNotFoundError', 404)
  await fs.deleteFile('/tmp/dir/moved')
  await failure(fs.deleteFile('/tmp/dir'), 'DaytonaValidationError', 400)
  await fs.deleteFile('/tmp/dir', true)
  await failure(fs.listFiles('/tmp/dir'), 'DaytonaFileNotFoundError', 404)
})

test('permissions', async () => {
  const { fs, process } = shared.box
  await fs.uploadFile(Buffer.from('x'), '/tmp/rights')
  await fs.setFilePermissions('/tmp/rights', { mode: '604', owner: 'user', group: 'user' })
  const { permissions, owner, group } = await fs.getFileDetails('/tmp/rights')
  assert.deepEqual([permissions, owner, group], ['0604', 'user', 'user'])
  assert.equal((await process.executeCommand('stat -c "%a %U %G" /tmp/rights')).result, '604 user user\n')
})

test('find, search and replace', async () => {
  const { fs } = shared.box
  await fs.uploadFiles([
    { source: Buffer.from('one\nneedle here\nthree\n'), destination: '/tmp/search/a.txt' },
    { source: Buffer.from('no\n'), destination: '/tmp/search/below/b.txt' },
    { source: Buffer.from('needle\n'), destination: '/tmp/search/below/c.md' },
  ])
  const matches = await fs.findFiles('/tmp/search', 'needle')
  assert.deepEqual(matches.map((m) => [m.file, m.line, m.content.trim()]).sort(), [
    ['/tmp/search/a.txt', 2, 'needle here'], ['/tmp/search/below/c.md', 1, 'needle'],
  ])
  const { files } = await fs.searchFiles('/tmp/search', '*.txt')
  assert.deepEqual(files.sort(), ['/tmp/search/a.txt', '/tmp/search/below/b.txt'])
  const results = await fs.replaceInFiles(['/tmp/search/a.txt', '/tmp/search/none'], 'needle', 'pin')
  assert.deepEqual(results.map((r) => [r.file, r.success]), [['/tmp/search/a.txt', true], ['/tmp/search/none', false]])
  assert.ok(results[1].error)
  assert.equal((await fs.downloadFile('/tmp/search/a.txt')).toString(), 'one\npin here\nthree\n')
})

test('signed URLs of files', async () => {
  const { box } = shared
  const form = new FormData()
  form.append('file', new Blob(['by a link']), 'signed')
  const up = await fetch(await box.uploadUrl('/tmp/signed'), { method: 'POST', body: form })
  assert.ok(up.ok, `${up.status}`)
  const url = await box.downloadUrl('/tmp/signed', 600)
  const res = await fetch(url)
  assert.deepEqual([res.status, await res.text()], [200, 'by a link'])
  assert.ok((await fetch(url.replace('signed', 'other'))).status >= 400)
})
