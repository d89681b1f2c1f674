package debian

import (
	"bytes"
	_ "embed"
	"strconv"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/mirror"
)

// archiveKeys are the public keys of Debian's archive, from the package
// debian-archive-keyring, according to which they are not under copyright.
//
//go:embed keys/debian-archive-keyring.gpg
var archiveKeys []byte

// release is the signed data of a release.
type release struct {
	date  time.Time
	files map[string]mirror.Pin // by path below the release
}

// releaseTime is the time format of Release files.
const releaseTime = "Mon, 02 Jan 2006 15:04:05 MST"

// maxClockSkew is how far a release's date may be in the future.
const maxClockSkew = 24 * time.Hour

// openRelease checks an InRelease file: its signature, its suite and its date.
//
// Invalid: not an InRelease file. PermissionDenied: it is not signed by one of keys, for
// another release, or no longer valid.
func openRelease(data, keys []byte, suite string, now time.Time) (release, error) {
	signed, rest := clearsign.Decode(data)
	if signed == nil || len(bytes.TrimSpace(rest)) > 0 {
		return release{}, sandpit.Errorf(sandpit.Invalid, "the release file is not a signed text")
	}
	ring, err := openpgp.ReadKeyRing(bytes.NewReader(keys))
	if err != nil {
		return release{}, sandpit.Errorf(sandpit.Internal, "read the keys of the archive: %w", err)
	}
	if _, err := signed.VerifySignature(ring, nil); err != nil {
		return release{}, sandpit.WithHint(
			sandpit.Errorf(sandpit.PermissionDenied, "the release is not signed by Debian's archive: %w", err),
			"use another mirror; if that does not help, update sandpit: a newer version has newer keys")
	}
	var r release
	seen := 0
	err = readParagraphs(bytes.NewReader(signed.Plaintext), func(p paragraph, _ string) error {
		seen++
		var err error
		r, err = p.toRelease(suite, now)
		return err
	})
	if err == nil && seen != 1 {
		err = sandpit.Errorf(sandpit.Invalid, "the release file has %d paragraphs, want 1", seen)
	}
	return r, err
}

func (p paragraph) toRelease(suite string, now time.Time) (release, error) {
	r := release{files: map[string]mirror.Pin{}}
	if p["suite"] != suite && p["codename"] != suite {
		return r, sandpit.Errorf(sandpit.PermissionDenied, "the release file is for %.60q, not for %s", p["codename"], suite)
	}
	var err error
	if r.date, err = time.Parse(releaseTime, p["date"]); err != nil {
		return r, sandpit.Errorf(sandpit.Invalid, "date of the release: %w", err)
	}
	if r.date.After(now.Add(maxClockSkew)) {
		return r, sandpit.WithHint(
			sandpit.Errorf(sandpit.PermissionDenied, "the date of the release, %s, is in the future", r.date.Format(time.RFC3339)), "check this machine's clock")
	}
	if until := p["valid-until"]; until != "" {
		end, err := time.Parse(releaseTime, until)
		if err != nil {
			return r, sandpit.Errorf(sandpit.Invalid, "expiry date of the release: %w", err)
		}
		if now.After(end) {
			return r, sandpit.WithHint(
				sandpit.Errorf(sandpit.PermissionDenied, "the release was valid until %s: the mirror is out of date", end.Format(time.RFC3339)),
				"use another mirror, and check this machine's clock")
		}
	}
	for line := range strings.Lines(p["sha256"]) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if len(fields) != 3 {
			return r, sandpit.Errorf(sandpit.Invalid, "invalid line in the list of files: %.60q", line)
		}
		f, err := newPin(fields[1], fields[0])
		if err != nil {
			return r, err
		}
		r.files[fields[2]] = f
	}
	return r, nil
}

func newPin(size, sum string) (mirror.Pin, error) {
	n, err := strconv.ParseInt(size, 10, 64)
	if err != nil || n < 0 || len(sum) != 64 || strings.Trim(sum, "0123456789abcdef") != "" {
		return mirror.Pin{}, sandpit.Errorf(sandpit.Invalid, "invalid size %.20q or digest %.80q", size, sum)
	}
	return mirror.Pin{Size: n, Digest: sum}, nil
}
