package debian

import (
	"bufio"
	"errors"
	"io"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// maxParagraph bounds one paragraph, in bytes. That of a Release file lists all files.
const maxParagraph = 8 << 20

// paragraph is one paragraph of a control file: values by field name in lower case.
// Continuation lines are part of the value, with their line breaks.
type paragraph map[string]string

// readParagraphs calls f with each paragraph of a control file and its text.
//
// Invalid: not a control file. Otherwise errors of r and f.
func readParagraphs(r io.Reader, f func(p paragraph, text string) error) error {
	in := bufio.NewReaderSize(r, 64<<10)
	var text strings.Builder
	for {
		line, err := in.ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		ended := err != nil
		if strings.TrimSpace(line) != "" {
			text.WriteString(strings.TrimSuffix(line, "\n") + "\n")
			if text.Len() > maxParagraph {
				return sandpit.Errorf(sandpit.Invalid, "a paragraph is longer than %d bytes", maxParagraph)
			}
			if !ended {
				continue
			}
		}
		if text.Len() > 0 {
			p, err := parseParagraph(text.String())
			if err != nil {
				return err
			}
			if err := f(p, text.String()); err != nil {
				return err
			}
			text.Reset()
		}
		if ended {
			return nil //nolint:nilerr // the error is the end
		}
	}
}

func parseParagraph(text string) (paragraph, error) {
	p := paragraph{}
	var name string
	var value strings.Builder
	put := func() {
		if name != "" {
			p[name] = value.String()
		}
		value.Reset()
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \t\r\n")
		if line != "" && (line[0] == ' ' || line[0] == '\t') {
			if name == "" {
				return nil, sandpit.Errorf(sandpit.Invalid, "a paragraph begins with a continuation line")
			}
			value.WriteString("\n" + strings.TrimSpace(line))
			continue
		}
		key, rest, found := strings.Cut(line, ":")
		if !found || key == "" || strings.ContainsAny(key, " \t") {
			return nil, sandpit.Errorf(sandpit.Invalid, "invalid field %.60q", line)
		}
		put()
		name = strings.ToLower(key)
		if _, twice := p[name]; twice {
			return nil, sandpit.Errorf(sandpit.Invalid, "duplicate field %.60q", key)
		}
		value.WriteString(strings.TrimSpace(rest))
	}
	put()
	return p, nil
}
