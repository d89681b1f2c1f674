// Package image converts an image reference to something that the engine can boot:
// one file with an EROFS file system, read only and shared by all sandboxes
// that start from it, and, for the host image, a list of directories of the
// machine that are mounted read only.
//
// # What an image contains
//
// Names, contents, owners, permission bits (including set-uid, set-gid and sticky),
// modification times, symbolic links, hard links, named pipes.
//
// Sockets and devices are left out because a sandbox has its own /dev. Extended
// attributes (also file capabilities and access control lists) are left out because the
// kernel of a sandbox cannot open a file of an image that has any.
//
// # Where images come from
//
// A registry, an OCI layout, an archive of an OCI layout or of the output of docker save,
// an archive of a root file system, a directory, or the machine itself. Layers are
// merged into one file, the lowest first; contents are copied directly from the layer to
// the file, and contents that a later layer hides become a hole. All input is hostile:
// every size is bounded, names and links are resolved in the tree of the image
// only, digests are checked when a layer arrives and again when it is used, and
// nothing is fetched from addresses in an image.
//
// # The cache
//
// A Store is a directory of finished images, NAME.erofs, where NAME is a digest
// of everything that determines the image. Finished images never change. An unfinished
// image is NAME.tmp, locked by its builder, so that concurrent goroutines and processes
// build it once. An unlocked NAME.tmp is left over from a killed process; Open removes it.
//
// The description of an image (its note) is stored after its file system in the same file.
// NAME.name records which image a reference means, NAME.index the image that was built from
// an archive, NAME.origin a repository that has sent all layers of an image; all three are
// caches and may be lost. An incomplete layer is NAME.part, a complete one NAME.blob; it is
// kept until its image is built, or for a day. A user of an image holds a shared lock on it,
// which is passed to the sandbox with the descriptor; only unlocked images are removed to
// free space. The modification time of an image file is the time of its last use.
//
// # The format
//
// This package writes the images itself, without a library, because the kernel of a
// sandbox requires a special form: contents of regular files in whole blocks (the kernel
// cannot map a file whose contents are stored inline with the inode), no chunks, no extended
// attributes. Hard links also have to be preserved instead of being copied.
package image
