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
// # Where images come from
//
// A registry, an OCI layout, an archive of either or of what docker save writes,
// an archive of a root file system, a directory, or the machine itself. Layers are
// merged into one file, the lowest first; contents go straight from the layer to
// the file, and what a later layer hides becomes a hole. All of it is hostile:
// every size is bounded, names and links are followed in the tree of the image
// alone, digests are checked when a layer comes and again when it is used, and
// nothing is fetched from addresses that an image names.
//
// # The cache
//
// A Store is a directory of finished images, NAME.erofs, where NAME is a digest
// of everything the image was made from. Finished images never change. An image
// in the making is NAME.tmp, locked by whoever makes it, so that any number of
// goroutines and processes make it once; a file in the making that nobody holds
// is what a killed process left, and Open removes it.
//
// What an image says about itself stands behind its file system in the same file.
// NAME.name remembers which image a reference means, NAME.index which one an
// archive gave; both may be lost without harm. A layer on its way is NAME.part,
// and NAME.blob when it is complete: it stays until its image is made, or for a
// day. Who uses an image has a shared lock on it, which goes along with the
// descriptor to the sandbox; only what nobody has locked is removed to make room.
// The time of an image file is that of its last use.
//
// # The format
//
// The images are written by this package and not by a library, because the
// kernel of a sandbox wants them in a form of its own: contents of regular files
// in whole blocks (it cannot map a file whose contents lie behind its inode), no
// chunks, no extended attributes; and because one name more for a file must
// remain one name more, not a copy.
package image
