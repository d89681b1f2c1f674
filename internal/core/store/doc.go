// Package store stores what a server must know after a crash: its sandboxes, its delayed
// operations and its audit trail. All of it is in one SQLite file, which one process at a
// time may use.
//
// A commit survives the end of the process at once, and the loss of power after
// the next checkpoint: a machine that loses power may forget its last moments,
// but never half of a change.
package store
