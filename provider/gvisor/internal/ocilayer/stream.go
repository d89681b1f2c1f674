// Package ocilayer converts the writable layer of a sandbox, as gVisor saves it, to a layer of
// an OCI image.
package ocilayer

import (
	"io"
	"os"
	"sync"

	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
)

// FileNames returns gVisor's names of the files that a layer is saved in.
func FileNames() []string {
	return []string{
		checkpointfiles.FSCheckpointManifestFileName, checkpointfiles.FSCheckpointMultiTarFileName,
		checkpointfiles.PagesMetadataFileName, checkpointfiles.PagesFileName,
	}
}

// stream is a layer that is converted while it is read.
type stream struct {
	*io.PipeReader

	converting sync.WaitGroup
}

// Close ends the conversion and waits for its end.
func (s *stream) Close() error {
	err := s.PipeReader.Close()
	s.converting.Wait()
	return err
}

// Stream returns a saved layer as the tar stream of an OCI image's layer. The files are those
// of FileNames, in their order. Unless Stream fails, they belong to the stream, which closes
// them. ownDir is the directory in the sandbox that is left out: the guest's.
//
// Internal, also from the reader: the files are damaged; the kernel that wrote them may be
// hostile.
func Stream(files []*os.File, ownDir string) (io.ReadCloser, error) {
	saved, err := openSavedLayer(files)
	if err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	s := &stream{PipeReader: r}
	s.converting.Go(func() {
		_ = w.CloseWithError(saved.convert(w, ownDir)) // never fails
		for _, f := range files {
			_ = f.Close() // only read
		}
	})
	return s, nil
}
