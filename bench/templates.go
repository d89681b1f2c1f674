package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// modulesServer is an interpreter that has loaded many modules and lists them over HTTP.
const modulesServer = `
import asyncio, concurrent.futures, csv, ctypes, decimal, difflib, email.message, html.parser, http.server, json
import logging.config, multiprocessing, pydoc, sqlite3, ssl, statistics, sys, unittest.mock, urllib.request
import xml.dom.minidom, zipfile

class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"modules %d" % len(sys.modules))

http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Page).serve_forever()
`

// templates measures a sandbox of a template with a running program: from the request to create it
// to the response of its web server through a preview.
func (k *kit) templates(ctx context.Context) (err error) {
	if !k.o.wants(nameTemplates) {
		return nil
	}
	s, _, _, err := k.openServer(ctx, "templates", "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	k.note("building a template with a web server")
	_, build, err := s.client.Templates.Build(ctx, client.TemplateRequest{
		Name: "web", Recipe: sandpit.Recipe{
			From:  sandpit.Image(k.root.path),
			Start: "exec python3 -c '" + modulesServer + "'",
			Ready: sandpit.Ready{URL: fmt.Sprintf("http://localhost:%d/", pagePort)},
		},
	})
	if err != nil {
		return withHint(err)
	}
	build, err = s.client.Builds.Wait(ctx, build.ID, func(sandpit.BuildLog) {})
	if err != nil {
		return err
	}
	if build.Status != sandpit.BuildReady {
		k.report.skip(metricTemplate, build.Reason.Message)
		k.note("without a template, which needs python3: %s", build.Reason.Message)
		return nil
	}
	list := series{kit: k, n: k.o.samples(30), metrics: []metric{{metricTemplate, unitMS}}}
	list.add(bySandpitHTTP, func() ([]float64, error) { return s.answer(ctx, sandpit.TemplatePrefix+"web") })
	return list.run(ctx)
}

// answer creates a sandbox and requests its page once.
func (s *served) answer(ctx context.Context, image sandpit.Image) (took []float64, err error) {
	begun := time.Now()
	box, err := s.client.Sandboxes.Create(ctx, client.CreateRequest{Spec: sandpit.Spec{Image: image}})
	if err != nil {
		return nil, withHint(err)
	}
	defer func() { err = errors.Join(err, box.Delete(ctx)) }()
	v, err := s.viewer(ctx, &servedBox{box: box})
	if err != nil {
		return nil, err
	}
	defer v.client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.target, nil)
	if err != nil {
		return nil, err
	}
	req.Header = v.header
	resp, err := v.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	took = []float64{ms(time.Since(begun))}
	if err == nil && !strings.HasPrefix(string(body), "modules ") {
		err = fmt.Errorf("%s: %s", resp.Status, lastWords(string(body)))
	}
	return took, err
}
