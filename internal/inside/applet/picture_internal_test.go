package applet

import (
	"bytes"
	"image"
	"image/png"
	"math/rand/v2"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// noise is a PNG that cannot be made small.
func noise(tb testing.TB, width, height int) []byte {
	tb.Helper()
	picture := image.NewRGBA(image.Rect(0, 0, width, height))
	random := rand.New(rand.NewPCG(1, 2))
	for i := range picture.Pix {
		picture.Pix[i] = byte(random.Uint32())
	}
	var b bytes.Buffer
	if err := png.Encode(&b, picture); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

// TestPicture makes pictures fit.
func TestPicture(t *testing.T) {
	t.Parallel()
	data := noise(t, 400, 100)
	for _, c := range []struct {
		width, height, bytes int
		mime                 string
		wantWidth, wantHigh  int
	}{
		{1000, 1000, 1 << 20, "image/png", 400, 100},
		{1000, 1000, 1000, "image/jpeg", 400, 100},
		{200, 1000, 1 << 20, "image/png", 200, 50},
		{1000, 10, 1 << 20, "image/png", 40, 10},
		{1, 1000, 1 << 20, "image/png", 1, 1},
	} {
		p, err := showPicture(t.Context(), PictureRequest{Data: data, Width: c.width, Height: c.height, Bytes: c.bytes})
		if err != nil || p.MIME != c.mime || p.Width != c.wantWidth || p.Height != c.wantHigh || p.Format != "png" || p.OriginalWidth != 400 {
			t.Errorf("%+v: %s %d x %d, %v", c, p.MIME, p.Width, p.Height, err)
		}
		head, format, err := image.DecodeConfig(bytes.NewReader(p.Data))
		if err != nil || "image/"+format != p.MIME || head.Width != p.Width || head.Height != p.Height {
			t.Errorf("%+v: the picture is %s of %d x %d, %v", c, format, head.Width, head.Height, err)
		}
	}
	if _, err := showPicture(t.Context(), PictureRequest{Data: data[:len(data)/2], Width: 10, Height: 10}); sandpit.CodeOf(err) != sandpit.Invalid {
		t.Errorf("half a picture: %v", err)
	}
}

// FuzzPicture reads any file as a picture: it is one of an allowed size, or an error.
func FuzzPicture(f *testing.F) {
	f.Add(noise(f, 8, 8))
	f.Add([]byte("GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;"))
	f.Add([]byte("RIFF\x1a\x00\x00\x00WEBPVP8L\x0d\x00\x00\x00/\x00\x00\x00\x10\x07\x10\x11\x11\x88\x88\xfe\x07\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		head, _, err := image.DecodeConfig(bytes.NewReader(data))
		if err == nil && head.Width*head.Height > 1<<20 {
			return // allowed, and slow
		}
		p, err := showPicture(t.Context(), PictureRequest{Data: data, Width: 64, Height: 64, Bytes: 1 << 20})
		if err == nil && (p.Width > 64 || p.Height > 64 || len(p.Data) == 0) {
			t.Errorf("%d x %d, %d bytes", p.Width, p.Height, len(p.Data))
		}
	})
}
