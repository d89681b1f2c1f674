// Package commandlog records the output of commands in bounded space: the newest part of each log in memory, earlier
// parts in one unnamed file, and of still older parts only their length.
//
// A Log holds two streams in records, in the order in which the output came. Records are in segments, which are moved
// to the file, dropped and read as a whole. A segment that differs when it is read back from the file counts as
// dropped: a program that is root where the file is can damage it, but cannot forge output. Data that cannot be
// written, for instance because the disk is full, is dropped too; appending never reports an error.
//
// All methods may be called concurrently, except those of one Reader.
package commandlog
