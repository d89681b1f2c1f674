package sandpit

import "context"

// Image names the root file system of a sandbox. Each provider has its own forms; gVisor's
// are HostImage, a directory, an archive, and the name of an image in a registry.
type Image string

// HostImage is the machine's own programs (/usr and what belongs to it), read
// only, with a small generated /etc. It needs no download and is the default of
// Spec.Image.
const HostImage Image = "host"

// ImagePreparer is an optional ability of a Provider: it fetches images before a
// sandbox needs them.
type ImagePreparer interface {
	// PrepareImage returns when sandboxes can be created from an image without a download,
	// until the image is removed. Concurrent calls for the same image share one download.
	//
	// Errors are those of Create about images.
	PrepareImage(ctx context.Context, image Image) error
}
