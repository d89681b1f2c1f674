// Package commandlog keeps what commands put out, in bounded room: the newest of each
// log in memory, what came before in one nameless file, and of what is older only
// how much it was.
//
// A Log holds two streams as they came, in records whose order is kept. Records lie
// in segments, which are moved to the file, dropped and read as a whole. A segment
// that comes back from the file otherwise than it was written counts as dropped:
// programs that are root where the file is can change it, but not into something
// that was never said. What cannot be written, because the disk is full for
// instance, is dropped too; nobody who appends ever hears of it.
//
// All methods may be called concurrently, except those of one Reader.
package commandlog
