// Templates: built by the SDK, found, tagged, and what sandboxes of them are.
import assert from 'node:assert/strict'
import { mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before } from 'node:test'
import { AuthenticationError, BuildError, Sandbox, SandboxError, Template, TemplateError, waitForFile } from 'e2b'
import { failure, test, within } from './sandbox.mjs'

const mark = `t${Date.now()}`
const named = (name) => `${mark}-${name}`
const built = new Set()
const made = []
let dir

// Each step of a build has a sandbox of its own.
const patience = 180_000

before(async () => {
  dir = await mkdtemp(join(tmpdir(), 'templates-'))
  await mkdir(join(dir, 'folder/sub'), { recursive: true })
  await writeFile(join(dir, 'folder/test.txt'), 'a text\n')
  await writeFile(join(dir, 'folder/sub/deep.txt'), 'deep\n')
  await symlink('test.txt', join(dir, 'folder/link.txt'))
})

after(async () => {
  for (const box of made) await box.kill()
  for (const name of built) await Sandbox.deleteSnapshot(name)
  await rm(dir, { recursive: true })
})

async function build(template, name, opts) {
  built.add(name.split(':')[0])
  return within(name, Template.build(template, name, { cpuCount: 1, memoryMB: 256, ...opts }), patience)
}

async function create(...args) {
  const box = await Sandbox.create(...args)
  made.push(box)
  return box
}

// fails builds what cannot be built, and returns the error, which is of a line here.
async function fails(template, name) {
  const error = await failure(build(template, named(name)), BuildError)
  assert.match(error.stack, /templates\.test\.mjs/, error.stack)
  return error
}

test('a template is built, and sandboxes are made of it', async () => {
  const template = Template({ fileContextPath: dir })
    .fromTemplate('base')
    .setEnvs({ ONE: '1', TWO: 'two words' })
    .copy('folder/test.txt', 'alone.txt')
    .copy('folder', 'whole')
    .copy('folder/*.txt', '/tmp/some', { mode: 0o600 })
    .runCmd(['cat alone.txt whole/sub/deep.txt', '[[ $TWO == "two words" ]]', 'echo $ONE > made'])
    .runCmd('id -un > /by-root', { user: 'root' })
    .setWorkdir('/app')
    .runCmd('touch mine')
  const logs = []
  const info = await build(template, `${named('full')}:v1`, { tags: ['stable'], onBuildLogs: (e) => logs.push(e.message) }).catch((e) => {
    console.error(logs.join('\n'))
    throw e
  })
  assert.match(logs.join('\n'), /a text\ndeep/)
  const box = await create(named('full') + ':v1')
  const ran = await box.commands.run('pwd; whoami; echo $ONE $TWO; cat /home/user/made /by-root; stat -c "%U %a" /home/user/alone.txt /tmp/some/test.txt /app/mine')
  assert.equal(ran.stdout, '/app\nuser\n1 two words\n1\nroot\nuser 644\nuser 600\nuser 644\n')
  assert.equal((await box.commands.run('cat ~/whole/link.txt; readlink ~/whole/link.txt')).stdout, 'a text\ntest.txt\n')
  const about = await box.getInfo()
  assert.deepEqual([about.cpuCount, about.memoryMB, about.templateId], [1, 256, `${named('full')}:v1`])

  assert.deepEqual((await Template.getTags(named('full'))).map((t) => t.tag).sort(), ['stable', 'v1'])
  const assigned = await Template.assignTags(`${named('full')}:v1`, ['default', 'v2'])
  assert.equal(assigned.buildId, info.buildId)
  await Template.removeTags(named('full'), ['v1', 'v2'])
  assert.deepEqual((await Template.getTags(named('full'))).map((t) => t.tag).sort(), ['default', 'stable'])
  await failure(create(`${named('full')}:v1`), SandboxError, /404/)
  await failure(Template.assignTags(`${named('full')}:none`, 'x'), TemplateError, /404/)

  await build(Template().fromTemplate(named('full')).runCmd('cat /by-root > more'), named('child'))
  assert.equal((await (await create(named('child'))).commands.run('cat /app/more')).stdout, 'root\n')
}, patience)

test('steps are done again from skipCache on', async () => {
  const stamps = async (name) => {
    await build(Template().fromTemplate('base').runCmd('date +%N > ~/kept').skipCache().runCmd('date +%N > ~/again'), named(name))
    return (await (await create(named(name))).commands.run('cat ~/kept ~/again')).stdout.split('\n')
  }
  const [first, second] = [await stamps('stamped'), await stamps('restamped')]
  assert.equal(second[0], first[0])
  assert.notEqual(second[1], first[1])
}, patience)

test('a program that a template starts runs in its sandboxes', async () => {
  const template = Template().fromTemplate('base').setStartCmd('echo started > /tmp/started; exec sleep 1000', waitForFile('/tmp/started'))
  await build(template, named('started'))
  const box = await create(named('started'))
  assert.equal(await box.files.read('/tmp/started'), 'started\n')
  assert.match((await box.commands.run('ps -eo args')).stdout, /sleep 1000/)
}, patience)

test('templates exist, are published, and go', async () => {
  const name = named('plain')
  assert.equal(await Template.exists(name), false)
  await build(Template().fromTemplate('base').runCmd('true'), name)
  assert.equal(await Template.exists(name), true)
  assert.equal(await Template.exists('base'), true)
  const call = (method, path, body) => fetch(process.env.E2B_API_URL + path, {
    method, headers: { 'X-API-Key': process.env.E2B_API_KEY }, body: body && JSON.stringify(body),
  })
  const all = await (await call('GET', '/templates')).json()
  const mine = all.find((t) => t.names.includes(name))
  assert.deepEqual([mine.buildStatus, mine.buildCount, mine.public, mine.memoryMB], ['ready', 1, false, 256])
  assert.equal((await call('PATCH', `/v2/templates/${name}`, { public: true })).status, 200)
  const { public: open, builds } = await (await call('GET', `/templates/${mine.templateID}`)).json()
  assert.deepEqual([open, builds.length, builds[0].status], [true, 1, 'ready'])
  assert.equal(await Sandbox.deleteSnapshot(name), true)
  assert.equal(await Sandbox.deleteSnapshot(name), false)
  assert.equal(await Template.exists(name), false)
}, patience)

test('what cannot be built says why, and where', async () => {
  const base = () => Template({ fileContextPath: dir }).fromTemplate('base')
  let error = await fails(base().setUser('root123'), 'user')
  assert.equal(error.message, "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'")
  error = await fails(base().runCmd('true').runCmd('echo so >&2; exit 3'), 'exit')
  assert.match(error.message, /^failed to run command 'echo so >&2; exit 3': .*3/)
  await fails(base().setWorkdir('/etc/passwd'), 'workdir')
  await fails(Template().fromTemplate('no-such-template'), 'base')
  await fails(base().setStartCmd('exit 4', 'false'), 'start')
  await failure(Template.build(base(), 'not a name'), BuildError, /400/)
  await failure(Template.build(base(), named('key'), { apiKey: `e2b_${'1'.repeat(40)}` }), AuthenticationError)
}, patience)

test('uploads are signed, and as long as they say', async () => {
  const name = named('upload')
  built.add(name)
  const call = async (method, path, body) => (await fetch(process.env.E2B_API_URL + path, {
    method, headers: { 'X-API-Key': process.env.E2B_API_KEY }, body: body && JSON.stringify(body),
  })).json()
  const { templateID } = await call('POST', '/v3/templates', { name })
  const hash = mark.slice(1).padEnd(64, 'a')
  const { present, url } = await call('GET', `/templates/${templateID}/files/${hash}`)
  assert.equal(present, false)
  const put = async (to, body) => (await fetch(to, { method: 'PUT', body })).status
  assert.equal(await put(url.replace(hash, hash.replace('a', 'b')), 'x'), 401)
  assert.equal(await put(url.replace(/until=\d+/, 'until=9999999999'), 'x'), 401)
  assert.equal(await put(url.split('?')[0], 'x'), 401)
  assert.equal(await put(url, 'no archive'), 200)
  assert.equal((await call('GET', `/templates/${templateID}/files/${hash}`)).present, true)
  const { buildID } = await call('POST', '/v3/templates', { name })
  const steps = [{ type: 'COPY', args: ['x', 'y'], filesHash: hash }]
  const started = await call('POST', `/v2/templates/${templateID}/builds/${buildID}`, { fromTemplate: 'base', steps })
  assert.equal(started.code, 400)
  assert.match(started.message, /step 1: unpack files/)
}, patience)
