// Volumes: directories that outlive sandboxes.
import assert from 'node:assert/strict'
import { after } from 'node:test'
import { Sandbox, SandboxError, Volume, VolumeError, VolumeNotFoundError } from 'e2b'
import { failure, test } from './sandbox.mjs'

const [boxes, volumes] = [[], []]
const name = `volume-${Date.now()}`

async function create(opts) {
  boxes.push(await Sandbox.create('base', opts))
  return boxes.at(-1)
}

after(async () => {
  for (const box of boxes) await box.kill()
  for (const volume of volumes) await Volume.destroy(volume.volumeId)
})

test('a volume is made, found and destroyed', async () => {
  const volume = await Volume.create(name)
  assert.equal(volume.name, name)
  assert.ok(volume.token)
  await failure(Volume.create(name), VolumeError, /409/)
  await failure(Volume.create('not/a/name'), VolumeError, /400/)
  assert.equal((await Volume.getInfo(volume.volumeId)).name, name)
  assert.equal((await Volume.connect(volume.volumeId)).name, name)
  assert.deepEqual((await Volume.list()).filter((v) => v.name === name), [{ volumeId: volume.volumeId, name }])
  assert.equal(await Volume.destroy(volume.volumeId), true)
  assert.equal(await Volume.destroy(volume.volumeId), false)
  await failure(Volume.getInfo(volume.volumeId), VolumeNotFoundError)
  await failure(create({ volumeMounts: { '/mnt/data': name } }), SandboxError, /404.*volume .* not found/)
})

test('its files outlive sandboxes, and several have them', async () => {
  const volume = await Volume.create(`${name}-kept`)
  volumes.push(volume)
  const writer = await create({ volumeMounts: { '/mnt/data': volume } })
  await writer.files.write('/mnt/data/hello.txt', 'written by the writer')
  await writer.commands.run('chown user /mnt/data', { user: 'root' }) // whose it is at first
  await writer.commands.run('echo by a command > /mnt/data/command.txt')
  const [mount] = (await writer.getInfo()).volumeMounts
  assert.deepEqual(mount, { name: volume.name, path: '/mnt/data' })
  await failure(Volume.destroy(volume.volumeId), VolumeError, /409/)
  const twin = await create({ volumeMounts: { '/other': volume.name } })
  assert.equal(await twin.files.read('/other/hello.txt'), 'written by the writer')
  assert.equal(await writer.kill(), true)
  const reader = await create({ volumeMounts: { '/mnt/data': volume } })
  assert.equal(await reader.files.read('/mnt/data/command.txt'), 'by a command\n')
})
