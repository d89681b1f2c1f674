// Package image turns an image reference into something the engine can boot:
// one file with an EROFS file system, read only and shared by all sandboxes
// that start from it, and, for the host image, a list of directories of the
// machine that are shown read only.
//
// # What is kept
//
// Names, contents, owners, permission bits (set-uid, set-gid and sticky
// included), modification times, symbolic links, hard links, named pipes.
//
// Left out are sockets and devices, for a sandbox has its own /dev, and
// extended attributes (file capabilities and access lists too): the kernel of a
// sandbox cannot open a file of an image that has any.
//
// # The cache
//
// A Store is a directory of finished images, NAME.erofs, where NAME is a digest
// of everything the image was made from. Finished images never change. An image
// in the making is NAME.tmp, locked by whoever makes it, so that any number of
// goroutines and processes make it once; a file in the making that nobody holds
// is what a killed process left, and Open removes it.
//
// # The format
//
// The images are written by this package and not by a library, because the
// kernel of a sandbox wants them in a form of its own: contents of regular files
// in whole blocks (it cannot map a file whose contents lie behind its inode), no
// chunks, no extended attributes; and because one name more for a file must
// remain one name more, not a copy.
package image
