package mcpclient

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"image"
	_ "image/gif"  // told apart by image.DecodeConfig
	_ "image/jpeg" // the same
	_ "image/png"  // the same
	"net/http"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
)

// Tool is a tool that a server offers.
type Tool struct {
	// Name is valid for every client: letters, digits, - and _, at most 64. It begins with mcp_
	// and the server's name.
	Name string `json:"name"`
	// Tool is its name on the server.
	Tool        string          `json:"tool"`
	Title       string          `json:"title,omitempty"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"input_schema,omitempty"`
}

// toolList collects tools within bounds.
type toolList struct {
	Listing

	server string
	taken  map[string]bool // names of both kinds
	size   int
}

const maxToolName = 256 // bytes

func (l *toolList) addTool(t *sdk.Tool) {
	if t == nil || t.Name == "" || len(t.Name) > maxToolName || len(l.Tools) == mostTools {
		l.Omitted++
		return
	}
	tool := Tool{Name: qualifiedName(l.server, t.Name), Tool: t.Name, Title: truncate(t.Title, maxToolName), Description: truncate(t.Description, maxDescription)}
	if schema, err := json.Marshal(t.InputSchema); err == nil && len(schema) <= maxSchema { // without a schema only the server checks the input
		tool.Schema = schema
	}
	l.size += len(tool.Description) + len(tool.Schema) + len(tool.Title)
	if l.taken["name "+tool.Name] || l.taken["tool "+tool.Tool] || l.size > maxListed {
		l.Omitted++
		return
	}
	l.taken["name "+tool.Name], l.taken["tool "+tool.Tool] = true, true
	l.Tools = append(l.Tools, tool)
}

// truncate returns at most size bytes of a text, and "…" if it was longer, as valid UTF-8.
func truncate(text string, size int) string {
	return textlen.Shorten(strings.ToValidUTF8(text, ""), size)
}

var uncleanPattern = pattern.New(`[^A-Za-z0-9-]+`)

const (
	// namesBegin is how the names of servers' tools begin.
	namesBegin   = "mcp_"
	maxQualified = 64
	maxPrefix    = 24
	hashSize     = 10 // digits
)

// cleanName returns a text with "_" for each run of characters that a name may not have, and without
// "_" at its beginning and end.
func cleanName(text string) string {
	return strings.Trim(uncleanPattern().ReplaceAllString(text, "_"), "_")
}

// namePrefix returns the prefix of the names of a server's tools.
func namePrefix(server string) string {
	name := cleanName(server)
	return strings.TrimSuffix(namesBegin+name[:min(len(name), maxPrefix)], "_") + "_"
}

// qualifiedName returns a name for a tool of a server: mcp_SERVER_TOOL. A name that had to be changed
// ends with a hash of the original one, so that two tools do not get the same name.
func qualifiedName(server, tool string) string {
	name := namePrefix(server) + cleanName(tool)
	// If the server's name has no "_", the name is unambiguous.
	if name == namesBegin+server+"_"+tool && len(name) <= maxQualified && !strings.Contains(server, "_") {
		return name
	}
	sum := sha256.Sum256([]byte(server + "\x00" + tool))
	return strings.TrimRight(name[:min(len(name), maxQualified-hashSize-1)], "_") + "_" + hex.EncodeToString(sum[:])[:hashSize]
}

// Answer is the result of a tool call.
type Answer struct {
	// Text is its text parts, with notes in brackets for other parts.
	Text   string
	Images []Image
	// Files are recordings and other data.
	Files []File
	// Structured is nil or JSON.
	Structured json.RawMessage
	// Failed is true if the tool reports an error.
	Failed bool
}

// Image is an image: PNG, JPEG or GIF with a checked size, or WebP without.
type Image struct {
	MIME string
	Data []byte
}

// File is data that is neither text nor an image.
type File struct {
	// Suffix is how a file name for it ends, with the dot.
	Suffix string
	Data   []byte
}

const (
	mostContent   = 100
	mostImages    = 8
	maxImage      = 5 << 20 // bytes
	maxSide       = 8000    // pixels
	mostFiles     = 8
	maxFile       = 8 << 20 // bytes
	maxStructured = 256 << 10
	maxText       = 8 << 20
)

func toAnswer(r *sdk.CallToolResult) Answer {
	a := Answer{Failed: r.IsError}
	var parts []string
	size := 0
	for i, c := range r.Content {
		if i == mostContent {
			parts = append(parts, fmt.Sprintf("[%d more parts left out]", len(r.Content)-i))
			break
		}
		part := truncate(a.addPart(c), maxText-size)
		size += len(part)
		parts = append(parts, part)
		if size >= maxText {
			break
		}
	}
	a.Text = strings.Join(parts, "\n")
	if r.StructuredContent == nil {
		return a
	}
	data, err := json.Marshal(r.StructuredContent)
	switch {
	case err != nil || len(data) > maxStructured:
		a.Text += fmt.Sprintf("\n[STRUCTURED CONTENT left out: more than %d bytes]", maxStructured)
	default:
		a.Structured = data
		if strings.TrimSpace(a.Text) == "" {
			a.Text = string(data)
		}
	}
	return a
}

// addPart adds one part of a result, and returns its text or a note about it.
func (a *Answer) addPart(c sdk.Content) string {
	switch c := c.(type) {
	case *sdk.TextContent:
		return c.Text
	case *sdk.ImageContent:
		return a.addImage(c.MIMEType, c.Data)
	case *sdk.AudioContent:
		return a.addFile("AUDIO", c.MIMEType, "", c.Data)
	case *sdk.ResourceLink:
		return fmt.Sprintf("[RESOURCE LINK: %s %s %s] %s", truncate(c.Name, maxToolName), truncate(c.URI, 2000), truncate(c.MIMEType, 100), truncate(c.Description, maxDescription))
	case *sdk.EmbeddedResource:
		if c.Resource == nil {
			return "[RESOURCE without contents]"
		}
		if len(c.Resource.Blob) > 0 {
			return a.addFile("RESOURCE", c.Resource.MIMEType, c.Resource.URI, c.Resource.Blob)
		}
		return fmt.Sprintf("[RESOURCE: %s]\n%s", truncate(c.Resource.URI, 2000), c.Resource.Text)
	}
	return fmt.Sprintf("[CONTENT of unknown type: %T]", c)
}

// addImage adds an image if its format is supported and it is not too large.
func (a *Answer) addImage(mime string, data []byte) string {
	mime = truncate(mime, 100)
	refused := func(why string) string {
		return fmt.Sprintf("[IMAGE left out: %s, %d bytes: %s]", mime, len(data), why)
	}
	if len(a.Images) == mostImages || len(data) > maxImage {
		return refused(fmt.Sprintf("the limit is %d images of %d bytes", mostImages, maxImage))
	}
	kind := http.DetectContentType(data)
	switch kind {
	case "image/png", "image/jpeg", "image/gif":
		config, _, err := image.DecodeConfig(bytes.NewReader(data))
		if err != nil || config.Width > maxSide || config.Height > maxSide {
			return refused(fmt.Sprintf("damaged, or more than %d pixels wide or high", maxSide))
		}
	case "image/webp":
	default:
		return refused("unknown image format")
	}
	a.Images = append(a.Images, Image{MIME: kind, Data: data})
	return "[IMAGE: " + kind + "]"
}

func (a *Answer) addFile(what, mime, uri string, data []byte) string {
	mime, uri = truncate(mime, 100), truncate(uri, 2000)
	if len(a.Files) == mostFiles || len(data) > maxFile {
		return fmt.Sprintf("[%s left out: %s %s, %d bytes: the limit is %d of %d bytes]", what, mime, uri, len(data), mostFiles, maxFile)
	}
	_, kind, _ := strings.Cut(mime, "/")
	suffix := ".bin"
	if kind = uncleanPattern().ReplaceAllString(kind, ""); kind != "" && len(kind) <= 10 {
		suffix = "." + kind
	}
	a.Files = append(a.Files, File{Suffix: suffix, Data: data})
	return fmt.Sprintf("[%s %d: %s %s, %d bytes]", what, len(a.Files), mime, uri, len(data))
}
