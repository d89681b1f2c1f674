// Package fake makes sandboxes without any isolation, for tests of everything
// above providers. It is the second implementation of the contract: it goes
// through all the states, has every optional ability, and runs the real guest,
// but in the test's own process. So commands, files, terminals and watches are
// real, and they happen on the machine itself, as the user who runs the test.
// Never make it reachable for anybody but a test.
//
// A World is the machine that the sandboxes live on. Several Providers can share
// one, and dropping a Provider is what a crash looks like from there: the next
// one lists and attaches what the first has left. A test may order failures and
// delays from the World, end a sandbox from outside, and look at what became of
// one.
//
// Things that are not as in a real sandbox, besides isolation:
//
//   - Each sandbox has a directory of its own. Its home is there, and so is its
//     working directory: commands start in DIR/workspace for "/workspace". All
//     other absolute paths, those of file calls too, are the machine's.
//   - Ports are the machine's loopback ports, but for the guest's own.
//   - The only user is the one who runs the test. Mounts are Unsupported, and a
//     host name has no effect.
//   - Images are HostImage and all builds of templates, the machine as it is, and those that
//     sandpit.SnapshotImage names. A snapshot keeps files, not memory.
//   - Limits and network policies are remembered and have no effect.
//   - The files of an archived sandbox stay where they are.
package fake
