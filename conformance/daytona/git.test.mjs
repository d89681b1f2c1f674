// Git, as the SDK documents it. The remote is a repository inside the sandbox.
import assert from 'node:assert/strict'
import { failure, sharedSandbox, test } from './sandbox.mjs'

const remote = '/root/remote.git'
const sh = async (command) => {
  const { exitCode, result } = await shared.box.process.executeCommand(command)
  assert.equal(exitCode, 0, result)
  return result
}

const shared = sharedSandbox({}, async () => {
  await sh(`git init -q --bare -b main ${remote}
    git clone -q ${remote} /root/seed && cd /root/seed && git checkout -q -b main
    git config user.name Seed && git config user.email seed@example.org
    echo one > file && git add file && git commit -qm "First one" && git push -q origin main`)
})

test('clone, change, commit, push', async () => {
  const { git, fs } = shared.box
  const repo = '/root/work'
  await git.clone(remote, repo, 'main')
  const clean = await git.status(repo)
  assert.deepEqual([clean.currentBranch, clean.fileStatus, clean.ahead ?? 0, clean.behind ?? 0], ['main', [], 0, 0])
  assert.equal(clean.branchPublished, true)
  await fs.uploadFile(Buffer.from('two\n'), `${repo}/file`)
  await fs.uploadFile(Buffer.from('new\n'), `${repo}/new file`)
  const dirty = await git.status(repo)
  assert.deepEqual(dirty.fileStatus.map((f) => [f.name, f.staging, f.worktree]).sort(), [
    ['file', 'Unmodified', 'Modified'], ['new file', 'Untracked', 'Untracked'],
  ])
  await git.add(repo, ['file', 'new file'])
  assert.deepEqual((await git.status(repo)).fileStatus.map((f) => [f.name, f.staging]).sort(), [['file', 'Modified'], ['new file', 'Added']])
  const { sha } = await git.commit(repo, 'Second one', 'Ann', 'ann@example.org')
  assert.match(sha, /^[0-9a-f]{40}$/)
  assert.equal(await sh(`git -C ${repo} log -1 --format='%H %an %ae %s'`), `${sha} Ann ann@example.org Second one\n`)
  assert.equal((await git.status(repo)).ahead, 1)
  await git.push(repo)
  assert.equal((await sh(`git -C ${remote} rev-parse main`)).trim(), sha)
})

test('branches', async () => {
  const { git } = shared.box
  const repo = '/root/branches'
  await git.clone(remote, repo)
  await git.createBranch(repo, 'topic')
  assert.deepEqual((await git.branches(repo)).branches.sort(), ['main', 'topic'])
  await git.checkoutBranch(repo, 'topic')
  assert.equal((await git.status(repo)).currentBranch, 'topic')
  await git.checkoutBranch(repo, 'main')
  await failure(git.createBranch(repo, 'topic'), 'DaytonaGitBranchExistsError', 409)
  await git.deleteBranch(repo, 'topic')
  assert.deepEqual((await git.branches(repo)).branches, ['main'])
  await failure(git.checkoutBranch(repo, 'topic'), 'DaytonaGitBranchNotFoundError', 404)
  await failure(git.push(repo, undefined, undefined, 'topic'), 'DaytonaGitBranchNotFoundError', 404)
  await failure(git.add(repo, ['missing']), 'DaytonaFileNotFoundError', 404)
})

test('pull, and a push that is rejected', async () => {
  const { git, fs } = shared.box
  for (const repo of ['/root/left', '/root/right']) await git.clone(remote, repo)
  await fs.uploadFile(Buffer.from('left\n'), '/root/left/left')
  await git.add('/root/left', ['left'])
  await git.commit('/root/left', 'Left', 'Ann', 'ann@example.org')
  await git.push('/root/left')
  await git.pull('/root/right')
  assert.equal((await fs.downloadFile('/root/right/left')).toString(), 'left\n')
  await git.commit('/root/left', 'Empty', 'Ann', 'ann@example.org', true)
  await git.push('/root/left')
  await git.commit('/root/right', 'Other', 'Bob', 'bob@example.org', true)
  await failure(git.push('/root/right'), 'DaytonaGitPushRejectedError', 409)
})

test('init, remotes, config, reset, restore', async () => {
  const { git, fs } = shared.box
  const repo = '/root/fresh'
  await git.init(repo, false, 'trunk')
  await git.configureUser('Cy', 'cy@example.org', 'local', repo)
  assert.equal(await git.getConfig('user.name', 'local', repo), 'Cy')
  await fs.uploadFile(Buffer.from('a\n'), `${repo}/a`)
  await git.add(repo, ['a'])
  await git.commit(repo, 'A', 'Cy', 'cy@example.org')
  await git.remoteAdd(repo, 'origin', remote)
  assert.deepEqual((await git.remotes(repo)).remotes.map((r) => r.name), ['origin'])
  assert.equal(await git.remoteGet(repo, 'origin'), remote)
  await fs.uploadFile(Buffer.from('b\n'), `${repo}/a`)
  await git.restore(repo, ['a'])
  assert.equal((await fs.downloadFile(`${repo}/a`)).toString(), 'a\n')
  await git.commit(repo, 'B', 'Cy', 'cy@example.org', true)
  await git.reset(repo, 'hard', 'HEAD~1')
  assert.equal(await sh(`git -C ${repo} log -1 --format=%s`), 'A\n')
})

test('what is no repository, and a remote that is missing', async () => {
  const { git } = shared.box
  await failure(git.status('/tmp'), 'DaytonaGitRepoNotFoundError', 404)
  await failure(git.clone('/root/no-such.git', '/root/none'), 'DaytonaGitRepoNotFoundError', 404)
  await failure(git.clone('http://127.0.0.1:9/x.git', '/root/none'), 'DaytonaGitTransportFailedError', 502)
})
