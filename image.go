package sandpit

import "context"

// Image names the root file system a sandbox starts from. Which forms exist is
// the provider's business; the embedded engine knows HostImage, a directory, an
// archive, and what registries have.
type Image string

// HostImage is the machine's own programs (/usr and what belongs to it), read
// only, with a small generated /etc. It needs no download, and it is what a
// Spec without an image means.
const HostImage Image = "host"

// ImagePreparer is an optional ability of a Provider: it fetches images before a
// sandbox wants them.
type ImagePreparer interface {
	// PrepareImage returns when sandboxes of an image can be made without fetching
	// anything, as long as nobody removes it. Whoever wants the same image meanwhile
	// waits for the same download.
	//
	// Errors are those of Create about images.
	PrepareImage(ctx context.Context, image Image) error
}
