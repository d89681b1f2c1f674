package toolbox

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// lspHandlers serve the calls about language servers.
type lspHandlers struct{}

// registerLSP adds the calls on language servers, which run in the sandbox.
func (s *Server) registerLSP(mux api.Router) {
	for pattern, h := range map[string]handler{
		"POST /lsp/start":           lspHandlers{}.startLanguageServer,
		"POST /lsp/stop":            lspHandlers{}.stopLanguageServer,
		"POST /lsp/did-open":        lspHandlers{}.openDocument,
		"POST /lsp/did-close":       lspHandlers{}.closeDocument,
		"POST /lsp/completions":     lspHandlers{}.complete,
		"GET /lsp/document-symbols": lspHandlers{}.listDocumentSymbols,
		"GET /lsp/workspacesymbols": lspHandlers{}.findWorkspaceSymbols,
	} {
		s.handle(mux, pattern, h)
	}
}

// lspRequest is the body, or the query, of a call on a language server.
type lspRequest struct {
	LanguageID    string          `json:"languageId"`
	PathToProject string          `json:"pathToProject"`
	URI           string          `json:"uri"`
	Position      json.RawMessage `json:"position"`
	Context       json.RawMessage `json:"context"`
}

// readLSP reads a request, and returns the key of its language server.
func (c *call) readLSP(ctx context.Context) (lspRequest, serverKey, error) {
	var req lspRequest
	if c.r.Method == http.MethodGet {
		query := c.r.URL.Query()
		req = lspRequest{LanguageID: query.Get("languageId"), PathToProject: query.Get("pathToProject"), URI: query.Get("uri")}
	} else if err := c.readBody(&req); err != nil {
		return req, serverKey{}, err
	}
	if _, known := languages()[req.LanguageID]; !known {
		return req, serverKey{}, sandpit.Errorf(sandpit.Invalid, "languageId %.50q: want python, typescript, javascript or go", req.LanguageID)
	}
	project, err := c.filePath(ctx, "pathToProject", req.PathToProject)
	return req, serverKey{req.LanguageID, project}, err
}

func (lspHandlers) startLanguageServer(ctx context.Context, c *call) error {
	_, key, err := c.readLSP(ctx)
	if err != nil {
		return err
	}
	f, err := c.statTarget(ctx, key.project)
	if err != nil {
		return err
	}
	if !f.Mode.IsDir() {
		return sandpit.Errorf(sandpit.Invalid, "start a language server in %s: it is not a directory", key.project)
	}
	set, err := c.server.programs.findPrograms(c)
	if err != nil {
		return err
	}
	return c.writeDone(set.servers.start(ctx, c, set, key))
}

func (lspHandlers) stopLanguageServer(ctx context.Context, c *call) error {
	_, key, err := c.readLSP(ctx)
	if err != nil {
		return err
	}
	set, err := c.server.programs.findPrograms(c)
	if err != nil {
		return err
	}
	return c.writeDone(set.servers.stop(ctx, key))
}

// openServer reads a request about a document, and returns the running language server and the
// path of the document, which is "" in requests about a project.
func (c *call) openServer(ctx context.Context) (*languageServer, lspRequest, string, error) {
	req, key, err := c.readLSP(ctx)
	if err != nil {
		return nil, req, "", err
	}
	set, err := c.server.programs.findPrograms(c)
	if err != nil {
		return nil, req, "", err
	}
	server, err := set.servers.find(key)
	if err != nil || req.URI == "" {
		return server, req, "", err
	}
	text, found := strings.CutPrefix(req.URI, "file://") // clients do not escape the path, which may be relative
	if !found {
		return nil, req, "", sandpit.Errorf(sandpit.Invalid, "uri %.100q: want file://PATH", req.URI)
	}
	document, err := c.documentPath(ctx, key.project, text)
	return server, req, document, err
}

// documentPath returns the path of a document. Clients write a relative one below the project, or
// below the working directory.
func (c *call) documentPath(ctx context.Context, project, text string) (string, error) {
	if text != "" && text[0] != '/' && text[0] != '~' {
		below := path.Join(project, text)
		if _, err := c.guest.Stat(ctx, "", below); err == nil {
			return below, nil
		}
	}
	return c.filePath(ctx, "uri", text)
}

// openDocumentServer is openServer for requests that need a document.
func (c *call) openDocumentServer(ctx context.Context) (*languageServer, lspRequest, string, error) {
	server, req, document, err := c.openServer(ctx)
	if err == nil && document == "" {
		err = sandpit.Errorf(sandpit.Invalid, "uri is missing")
	}
	return server, req, document, err
}

// maxDocument bounds a document that is opened, in bytes, and documentCost is the memory that
// each of its bytes takes: as text, and as JSON.
const (
	maxDocument  = 4 << 20
	documentCost = 4
)

// openDocument gives a language server the content of a document. A document that is open is
// opened again, with its current content.
func (lspHandlers) openDocument(ctx context.Context, c *call) error {
	server, req, document, err := c.openDocumentServer(ctx)
	if err != nil {
		return err
	}
	f, err := c.openFile(ctx, document)
	if err != nil {
		return err
	}
	defer f.Close()
	if f.size > maxDocument {
		return sandpit.Errorf(sandpit.Invalid, "open %s: it has %d bytes, want at most %d", document, f.size, maxDocument)
	}
	text, err := memory.ReadAll(ctx, f, maxDocument, documentCost)
	if err != nil {
		return err
	}
	return c.writeDone(server.openDocument(ctx, toURI(document), req.LanguageID, string(text)))
}

func (lspHandlers) closeDocument(ctx context.Context, c *call) error {
	server, _, document, err := c.openDocumentServer(ctx)
	if err != nil {
		return err
	}
	return c.writeDone(server.closeDocument(ctx, toURI(document)))
}

// toURI returns the URI of a file.
func toURI(p string) string { return (&url.URL{Scheme: "file", Path: path.Clean(p)}).String() }

// completionItem is one proposal.
type completionItem struct {
	Label         string          `json:"label"`
	Kind          int             `json:"kind,omitempty"`
	Detail        string          `json:"detail,omitempty"`
	Documentation json.RawMessage `json:"documentation,omitempty"`
	SortText      string          `json:"sortText,omitempty"`
	FilterText    string          `json:"filterText,omitempty"`
	InsertText    string          `json:"insertText,omitempty"`
}

// completionList has proposals.
type completionList struct {
	IsIncomplete bool             `json:"isIncomplete"`
	Items        []completionItem `json:"items"`
}

func (lspHandlers) complete(ctx context.Context, c *call) error {
	server, req, document, err := c.openDocumentServer(ctx)
	if err != nil {
		return err
	}
	if len(req.Position) == 0 {
		return sandpit.Errorf(sandpit.Invalid, "position is missing")
	}
	params := map[string]any{"textDocument": textDocument{URI: toURI(document)}, "position": req.Position}
	if len(req.Context) > 0 && string(req.Context) != "null" {
		params["context"] = req.Context
	}
	raw, release, err := server.request(ctx, "textDocument/completion", params)
	if err != nil {
		return err
	}
	defer release()
	list, err := parseCompletions(ctx, raw)
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, list)
}

// parseCompletions parses a list, its items alone, or null.
func parseCompletions(ctx context.Context, raw json.RawMessage) (list completionList, err error) {
	if len(raw) > 0 && raw[0] == '[' {
		err = decode(ctx, raw, &list.Items)
	} else {
		err = decode(ctx, raw, &list)
	}
	if err != nil {
		return list, err
	}
	if list.Items == nil {
		list.Items = []completionItem{}
	}
	for i, item := range list.Items {
		list.Items[i].Documentation = toDocumentation(item.Documentation)
	}
	return list, nil
}

// toDocumentation returns a documentation as an object: clients do not accept plain text.
func toDocumentation(raw json.RawMessage) json.RawMessage {
	var text string
	if strings.HasPrefix(string(raw), "{") {
		return raw
	}
	if json.Unmarshal(raw, &text) != nil || text == "" {
		return nil
	}
	object, err := json.Marshal(map[string]string{"kind": "plaintext", "value": text})
	if err != nil {
		return nil
	}
	return object
}

var errServerResponse = sandpit.Errorf(sandpit.Internal, "the language server has sent an invalid response")
