package tool

import (
	"bytes"
	"context"
	"fmt"
	"image"
	_ "image/jpeg" // formats of returned images
	_ "image/png"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/applet"
)

const (
	// maxOriginal bounds an image file, maxShown the returned image, in bytes.
	maxOriginal = 10 << 20
	maxShown    = 5 << 20
	// shownWidth and shownHeight bound the returned image in pixels.
	shownWidth, shownHeight = 1920, 1080
)

func sandboxVision() Tool {
	return Tool{
		Name: "sandbox_vision", Title: "View an image", Hints: Hints{ReadOnly: true, Idempotent: true},
		Description: "View an image file of the sandbox: JPEG, PNG, GIF (first frame) or WebP up to 10 MB. Images above 1920 x 1080 pixels are scaled down.",
		function:    newFunction(seeImage), synonyms: map[string]string{"path": "file_path", "file": "file_path"},
	}
}

type visionInput struct {
	Action string `json:"action,omitempty" jsonschema:"what to do" enum:"see_image" default:"see_image"`
	File   string `json:"file_path" jsonschema:"path of the image, relative to the working directory or absolute"`
}

type visionData struct {
	File           string `json:"file_path"`
	MIME           string `json:"mime"`
	Width          int    `json:"width"`
	Height         int    `json:"height"`
	Bytes          int    `json:"bytes"`
	Original       string `json:"original_format"`
	OriginalWidth  int    `json:"original_width"`
	OriginalHeight int    `json:"original_height"`
	OriginalBytes  int    `json:"original_bytes"`
}

func seeImage(ctx context.Context, s *Session, in visionInput) (Result, error) {
	file, err := s.ReadFile(ctx, s.absPath(in.File), maxOriginal)
	if err != nil {
		return Result{}, err
	}
	p, err := callApplet[applet.PictureResult](ctx, s, applet.Picture, applet.PictureRequest{Data: file, Width: shownWidth, Height: shownHeight, Bytes: maxShown})
	if err != nil {
		return Result{}, err
	}
	if err := checkPicture(p); err != nil {
		return Result{}, err
	}
	data := visionData{
		File: s.absPath(in.File), MIME: p.MIME, Width: p.Width, Height: p.Height, Bytes: len(p.Data),
		Original: s.secretSet().truncateText(p.Format), OriginalWidth: p.OriginalWidth, OriginalHeight: p.OriginalHeight, OriginalBytes: len(file),
	}
	text := fmt.Sprintf("%s: an image of %d x %d pixels", in.File, p.OriginalWidth, p.OriginalHeight)
	if p.Width != p.OriginalWidth || p.Height != p.OriginalHeight {
		text += fmt.Sprintf(", scaled to %d x %d", p.Width, p.Height)
	}
	return Result{Text: text, Data: data, Images: []Image{{MIME: p.MIME, Data: p.Data}}}, nil
}

// checkPicture checks the scaled image from the sandbox.
func checkPicture(p applet.PictureResult) error {
	if len(p.Data) > maxShown {
		return sandpit.Errorf(sandpit.Exhausted, "the scaled image has %d bytes, more than the limit of %d", len(p.Data), maxShown)
	}
	head, format, err := image.DecodeConfig(bytes.NewReader(p.Data))
	if err != nil || p.MIME != "image/"+format || head.Width != p.Width || head.Height != p.Height || head.Width > shownWidth || head.Height > shownHeight {
		return sandpit.Errorf(sandpit.Internal, "the guest's applet returned no image of an allowed size (%v)", err)
	}
	return nil
}
