// Sandboxes from creation to deletion, as the SDK documents them.
import assert from 'node:assert/strict'
import { create, daytona, failure, test, unique, until, call } from './sandbox.mjs'

test('a new sandbox is started, and describes itself', async () => {
  const box = await create()
  assert.equal(box.state, 'started')
  assert.equal(box.desiredState, 'started')
  assert.ok(box.id && box.name && box.organizationId && box.user && box.target, `${[box.id, box.name, box.organizationId, box.user, box.target]}`)
  assert.equal(box.public, false)
  assert.equal(box.networkBlockAll, false)
  assert.equal(box.labels['code-toolbox-language'], 'python')
  assert.ok(box.cpu > 0 && box.memory > 0 && box.disk >= 0 && box.gpu === 0, `${box.cpu} ${box.memory} ${box.disk} ${box.gpu}`)
  assert.deepEqual([box.autoStopInterval, box.autoArchiveInterval, box.autoDeleteInterval], [15, 10080, -1])
  assert.ok(Math.abs(Date.now() - Date.parse(box.createdAt)) < 60_000, box.createdAt)
  assert.match(box.toolboxProxyUrl, /\/toolbox$/)
})

test('name, variables, labels, and what is found by them', async () => {
  const name = unique('named')
  const box = await create({ name, envVars: { GREETING: 'good day' }, labels: { purpose: name }, autoStopInterval: 30, autoArchiveInterval: 60, autoDeleteInterval: 120 })
  assert.equal(box.name, name)
  assert.equal((await box.process.executeCommand('echo $GREETING')).result, 'good day\n')
  for (const key of [name, box.id]) {
    const found = await daytona.get(key)
    assert.equal(found.id, box.id)
    assert.equal(found.env.GREETING, 'good day')
    assert.equal(found.labels.purpose, name)
    assert.deepEqual([found.autoStopInterval, found.autoArchiveInterval, found.autoDeleteInterval], [30, 60, 120])
  }
  const listed = []
  for await (const other of daytona.list({ labels: { purpose: name } })) listed.push(other.id)
  assert.deepEqual(listed, [box.id])
  await failure(daytona.create({ name }), 'DaytonaConflictError', 409)
})

test('lists have pages, and filters', async () => {
  const group = unique('group')
  const ids = []
  for (let n = 0; n < 3; n++) ids.push((await create({ labels: { group, n: `${n}` } })).id)
  const all = async (query) => {
    const found = []
    for await (const box of daytona.list(query)) found.push(box.id)
    return found.sort()
  }
  assert.deepEqual(await all({ labels: { group }, limit: 1 }), [...ids].sort())
  assert.deepEqual(await all({ labels: { group, n: '1' } }), [ids[1]])
  await (await daytona.get(ids[0])).stop()
  assert.deepEqual(await all({ labels: { group }, states: ['stopped'] }), [ids[0]])
  assert.deepEqual(await all({ labels: { group }, states: ['started'] }), ids.slice(1).sort())
})

test('stop keeps files, start brings them back', async () => {
  const box = await create()
  await box.fs.uploadFile(Buffer.from('kept'), '/root/kept.txt')
  await box.stop()
  assert.equal(box.state, 'stopped')
  assert.equal((await daytona.get(box.id)).state, 'stopped')
  await box.start()
  assert.equal(box.state, 'started')
  assert.equal((await box.fs.downloadFile('/root/kept.txt')).toString(), 'kept')
  assert.equal((await box.process.executeCommand('echo again')).result, 'again\n')
})

test('labels are replaced', async () => {
  const box = await create({ labels: { old: '1' } })
  const labels = await box.setLabels({ fresh: '2' })
  assert.deepEqual(labels, { fresh: '2' })
  await box.refreshData()
  assert.deepEqual(box.labels, { fresh: '2' })
})

test('intervals are changed', async () => {
  const box = await create()
  await box.setAutostopInterval(45)
  await box.setAutoArchiveInterval(90)
  await box.setAutoDeleteInterval(180)
  await box.refreshData()
  assert.deepEqual([box.autoStopInterval, box.autoArchiveInterval, box.autoDeleteInterval], [45, 90, 180])
  await box.setAutostopInterval(0)
  await box.setAutoArchiveInterval(0)
  await box.setAutoDeleteInterval(-1)
  const found = await daytona.get(box.id)
  assert.deepEqual([found.autoStopInterval, found.autoArchiveInterval, found.autoDeleteInterval], [0, 43200, -1])
  await failure(box.setAutostopInterval(-1), 'DaytonaInvalidArgumentError')
})

test('a time to live', async () => {
  const box = await create({ ttlMinutes: 30 })
  await box.refreshData()
  const left = Date.parse(box.autoDestroyAt) - Date.now()
  assert.ok(left > 29 * 60_000 && left <= 30 * 60_000, `${box.autoDestroyAt}`)
})

test('an ephemeral sandbox is gone when it stops', async () => {
  const box = await create({ ephemeral: true })
  assert.equal(box.autoDeleteInterval, 0)
  await box.stop()
  await until('it is gone', async () => {
    try {
      await daytona.get(box.id)
      return false
    } catch (e) {
      assert.equal(e.constructor.name, 'DaytonaNotFoundError')
      return true
    }
  })
})

test('an archived sandbox starts with its files', async () => {
  const box = await create()
  await box.fs.uploadFile(Buffer.from('stored'), '/root/stored.txt')
  await failure(box.archive(), 'DaytonaValidationError', 400, /not stopped/)
  await box.stop()
  await box.archive()
  await until(() => `archived: ${box.state}`, async () => {
    await box.refreshData()
    return box.state === 'archived'
  })
  await box.start()
  assert.equal((await box.fs.downloadFile('/root/stored.txt')).toString(), 'stored')
})

test('pause and resume keep programs', async () => {
  const box = await create()
  await box.process.createSession('s')
  await box.process.executeSessionCommand('s', { command: 'sleep 1000', runAsync: true })
  await box.pause()
  assert.equal(box.state, 'paused')
  await box.start()
  const { result } = await box.process.executeCommand('ps -eo args | grep -c "[s]leep 1000"')
  assert.equal(result.trim() === '0', false, result)
})

test('a fork has the files of its sandbox', async () => {
  const box = await create()
  await box.fs.uploadFile(Buffer.from('both'), '/root/both.txt')
  const name = unique('fork')
  const fork = await box.fork({ name })
  try {
    assert.equal(fork.name, name)
    assert.equal((await fork.fs.downloadFile('/root/both.txt')).toString(), 'both')
    await fork.fs.uploadFile(Buffer.from('one'), '/root/one.txt')
    await failure(box.fs.getFileDetails('/root/one.txt'), 'DaytonaFileNotFoundError', 404)
  } finally {
    await fork.delete()
  }
})

test('a snapshot of a sandbox, and sandboxes from it', async () => {
  const box = await create()
  await box.fs.uploadFile(Buffer.from('saved'), '/root/saved.txt')
  const name = unique('snap')
  await box.createSnapshot(name)
  const snapshot = await daytona.snapshot.get(name)
  assert.equal(snapshot.name, name)
  assert.equal(snapshot.state, 'active')
  const { items } = await daytona.snapshot.list()
  assert.ok(items.some((one) => one.name === name), JSON.stringify(items))
  const copy = await create({ snapshot: name })
  assert.equal(copy.snapshot, name)
  assert.equal((await copy.fs.downloadFile('/root/saved.txt')).toString(), 'saved')
  await copy.delete(60, true)
  await daytona.snapshot.delete(snapshot)
  await failure(daytona.snapshot.get(name), 'DaytonaNotFoundError', 404)
})

test('limits of a sandbox change', async () => {
  const box = await create()
  const { cpu, memory } = box
  await box.resize({ memory: memory + 1 })
  await box.refreshData()
  assert.equal(box.memory, memory + 1)
  await failure(box.resize({ memory }), 'DaytonaValidationError', 400, /only grows/)
  await failure(box.resize({ cpu }), 'DaytonaValidationError', 400, /No resource changes/)
  await box.stop()
  await box.resize({ memory })
  await box.start()
  assert.equal(box.memory, memory)
  const { result } = await box.process.executeCommand('cat /sys/fs/cgroup/memory.max')
  assert.equal(Number(result), memory * 2 ** 30)
})

test('delete, and the name is free again', async () => {
  const name = unique('again')
  const box = await create({ name })
  await box.delete(60, true)
  await failure(daytona.get(box.id), 'DaytonaNotFoundError', 404)
  await failure(daytona.get(name), 'DaytonaNotFoundError', 404)
  const next = await create({ name })
  assert.notEqual(next.id, box.id)
})

test('activity, directories, version', async () => {
  const box = await create()
  const before = Date.parse((await daytona.get(box.id)).lastActivityAt)
  await box.refreshActivity()
  assert.ok(Date.parse((await daytona.get(box.id)).lastActivityAt) >= before)
  assert.equal(await box.getUserHomeDir(), '/root')
  assert.match(await box.getWorkDir(), /^\//)
})

test('a sandbox without a network', async () => {
  const box = await create({ networkBlockAll: true })
  assert.equal(box.networkBlockAll, true)
  await box.updateNetworkSettings({ networkBlockAll: false, networkAllowList: '93.184.216.0/24' })
  await box.refreshData()
  assert.equal(box.networkBlockAll, false)
  assert.equal(box.networkAllowList, '93.184.216.0/24')
})

test('volumes', async () => {
  const name = unique('volume')
  const volume = await daytona.volume.get(name, true)
  assert.equal(volume.name, name)
  const box = await create({ volumes: [{ volumeId: volume.id, mountPath: '/data' }] })
  await box.process.executeCommand('echo shared > /data/file')
  const other = await create({ volumes: [{ volumeId: volume.id, mountPath: '/data' }] })
  assert.equal((await other.process.executeCommand('cat /data/file')).result, 'shared\n')
  await box.delete(60, true)
  await other.delete(60, true)
  await daytona.volume.delete(volume)
})

test('events end waits, without polling', async () => {
  const dispatcher = daytona.eventDispatcher
  assert.ok(dispatcher, 'this version of the SDK has events')
  await until('the connection for events', () => dispatcher.isConnected)
})

test('a client without an SDK', async () => {
  assert.equal((await call('GET', '/config', undefined, { Authorization: '' })).status, 200)
  assert.equal((await call('GET', '/health', undefined, { Authorization: '' })).status, 200)
  const res = await call('POST', '/sandbox', {})
  const box = await res.json()
  assert.equal(res.status, 200, JSON.stringify(box))
  for (const name of ['id', 'organizationId', 'name', 'user', 'env', 'labels', 'public', 'networkBlockAll', 'target', 'cpu', 'gpu', 'memory', 'disk', 'toolboxProxyUrl']) {
    assert.notEqual(box[name], undefined, name)
  }
  // Versions before 0.120 send calls of the toolbox to the control API.
  const run = await call('POST', `/toolbox/${box.id}/toolbox/process/execute`, { command: 'echo old' })
  assert.deepEqual(await run.json(), { exitCode: 0, result: 'old\n' })
  assert.equal((await call('DELETE', `/sandbox/${box.id}`)).status, 200)
})
