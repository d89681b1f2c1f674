// Package e2b is the provider of sandboxes in E2B's cloud, or of another server that speaks E2B's API, such as
// sandpit's own.
//
// A sandbox is created with the metadata of its server, so that List finds all sandboxes of that server and no other
// ones. The cloud ends or pauses it at its expiry if no server renews that. The provider stores nothing on this
// machine: a handle names the sandbox, and its tokens are fetched again.
//
// The guest is sandpit's own where it can be brought into the sandbox, beside E2B's. Otherwise E2B's serves, with what
// that can do.
package e2b
