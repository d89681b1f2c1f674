package applet

import (
	"bytes"
	"context"
	"image"
	"image/color"
	_ "image/gif"
	"image/jpeg"
	"image/png"

	"golang.org/x/image/draw"
	_ "golang.org/x/image/webp"

	"github.com/sandpit-dev/sandpit"
)

// Picture is the applet that converts a picture into a form for models. It runs in the sandbox, because a picture can
// be made to use much memory or to exploit a decoder.
const Picture = "picture"

const (
	// maxPictureSide and maxPicturePixels bound the pictures that are decoded, in pixels.
	maxPictureSide   = 8192
	maxPicturePixels = 40 << 20
	pictureQuality   = 85
)

// PictureRequest is a JPEG, PNG, GIF or WebP file to convert.
type PictureRequest struct {
	Data []byte `json:"data"`
	// Width and Height are the largest size of the result, in pixels.
	Width  int `json:"width"`
	Height int `json:"height"`
	// Bytes is the largest size of a PNG; a larger one becomes a JPEG.
	Bytes int `json:"bytes"`
}

// PictureResult is the converted picture. A PNG stays a PNG; all other formats become a JPEG, with white for
// transparent parts. Of an animation only the first frame remains.
type PictureResult struct {
	MIME   string `json:"mime"`
	Data   []byte `json:"data"`
	Width  int    `json:"width"`
	Height int    `json:"height"`
	// Format is the format of the file, as Go names it.
	Format         string `json:"format"`
	OriginalWidth  int    `json:"original_width"`
	OriginalHeight int    `json:"original_height"`
}

func showPicture(_ context.Context, r PictureRequest) (PictureResult, error) {
	head, format, err := image.DecodeConfig(bytes.NewReader(r.Data))
	if err != nil {
		return PictureResult{}, sandpit.Errorf(sandpit.Invalid, "not a JPEG, PNG, GIF or WebP picture: %w", err)
	}
	if head.Width < 1 || head.Height < 1 || head.Width > maxPictureSide || head.Height > maxPictureSide || head.Width*head.Height > maxPicturePixels {
		return PictureResult{}, sandpit.Errorf(sandpit.Exhausted, "the picture has %d x %d pixels; the limit is %d on a side and %d in all",
			head.Width, head.Height, maxPictureSide, maxPicturePixels)
	}
	picture, _, err := image.Decode(bytes.NewReader(r.Data))
	if err != nil {
		return PictureResult{}, sandpit.Errorf(sandpit.Invalid, "decode the picture: %w", err)
	}
	result := PictureResult{Format: format, OriginalWidth: head.Width, OriginalHeight: head.Height}
	width, height := fitWithin(head.Width, head.Height, r.Width, r.Height)
	result.Width, result.Height = width, height
	if format == "png" {
		result.MIME = "image/png"
		result.Data, err = asPNG(scalePicture(picture, width, height, true))
	}
	if err == nil && (format != "png" || len(result.Data) > r.Bytes) {
		result.MIME = "image/jpeg"
		result.Data, err = asJPEG(scalePicture(picture, width, height, false))
	}
	return result, err
}

func asPNG(picture image.Image) ([]byte, error) {
	var out bytes.Buffer
	err := png.Encode(&out, picture)
	return out.Bytes(), err
}

func asJPEG(picture image.Image) ([]byte, error) {
	var out bytes.Buffer
	err := jpeg.Encode(&out, picture, &jpeg.Options{Quality: pictureQuality})
	return out.Bytes(), err
}

// fitWithin returns the largest size within limits that keeps the proportions.
func fitWithin(width, height, maxWidth, maxHeight int) (int, int) {
	scale := min(1, float64(maxWidth)/float64(width), float64(maxHeight)/float64(height))
	return max(1, int(float64(width)*scale+0.5)), max(1, int(float64(height)*scale+0.5))
}

func scalePicture(picture image.Image, width, height int, transparent bool) image.Image {
	small := image.NewRGBA(image.Rect(0, 0, width, height))
	if !transparent {
		draw.Draw(small, small.Bounds(), image.NewUniform(color.White), image.Point{}, draw.Src)
	}
	draw.BiLinear.Scale(small, small.Bounds(), picture, picture.Bounds(), draw.Over, nil)
	return small
}
