package tool

import (
	"bytes"
	"context"
	"fmt"
	"image"
	_ "image/jpeg" // what pictures come as
	_ "image/png"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/applet"
)

const (
	// maxOriginal is the largest picture that is looked at, maxShown the largest that is
	// returned, in bytes.
	maxOriginal = 10 << 20
	maxShown    = 5 << 20
	// shownWidth and shownHeight are its largest size, in pixels.
	shownWidth, shownHeight = 1920, 1080
)

func sandboxVision() Tool {
	return Tool{
		Name: "sandbox_vision", Title: "Look at a picture", Hints: Hints{ReadOnly: true, Idempotent: true},
		Description: "Look at a picture in a file of the sandbox: JPEG, PNG, GIF (its beginning) or WebP of up to 10 MB. It is made smaller if it is larger than 1920 x 1080 pixels.",
		function:    newFunction(seeImage), synonyms: map[string]string{"path": "file_path", "file": "file_path"},
	}
}

type visionInput struct {
	Action string `json:"action,omitempty" jsonschema:"what to do" enum:"see_image" default:"see_image"`
	File   string `json:"file_path" jsonschema:"path of the picture, relative to the working directory or absolute"`
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
		Original: s.truncateText(p.Format), OriginalWidth: p.OriginalWidth, OriginalHeight: p.OriginalHeight, OriginalBytes: len(file),
	}
	text := fmt.Sprintf("%s: a picture of %d x %d pixels", in.File, p.OriginalWidth, p.OriginalHeight)
	if p.Width != p.OriginalWidth || p.Height != p.OriginalHeight {
		text += fmt.Sprintf(", shown with %d x %d", p.Width, p.Height)
	}
	return Result{Text: text, Data: data, Images: []Image{{MIME: p.MIME, Data: p.Data}}}, nil
}

// checkPicture checks what the sandbox has made of a picture.
func checkPicture(p applet.PictureResult) error {
	if len(p.Data) > maxShown {
		return sandpit.Errorf(sandpit.Exhausted, "the picture has %d bytes even when it is made smaller; at most %d are returned", len(p.Data), maxShown)
	}
	head, format, err := image.DecodeConfig(bytes.NewReader(p.Data))
	if err != nil || p.MIME != "image/"+format || head.Width != p.Width || head.Height != p.Height || head.Width > shownWidth || head.Height > shownHeight {
		return sandpit.Errorf(sandpit.Internal, "the sandbox's own program has returned no picture of an allowed size (%v)", err)
	}
	return nil
}
