package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// dockerAPI is the same daemon, without the command line.
type dockerAPI struct {
	daemon *docker
	client *http.Client
}

// openDockerAPI finds the daemon's socket.
func openDockerAPI(ctx context.Context, d *docker) (*dockerAPI, error) {
	endpoint, err := dockerOutput(ctx, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}")
	if err != nil {
		return nil, err
	}
	path, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok {
		return nil, fmt.Errorf("docker endpoint %s: want a Unix socket of this machine", endpoint)
	}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
	}
	return &dockerAPI{daemon: d, client: &http.Client{Transport: transport}}, nil
}

// Close closes idle connections. docker removes the containers.
func (d *dockerAPI) Close() { d.client.CloseIdleConnections() }

func (d *dockerAPI) contestant() contestant {
	return contestant{
		name:     byDockerAPI,
		runsOnly: true,
		life:     d.life,
		start: func(ctx context.Context) (box, error) {
			b, err := d.daemon.start(ctx)
			if err != nil {
				return nil, err
			}
			return &apiBox{dockerBox: b, api: d}, nil
		},
	}
}

// call makes one call and decodes the response into out, unless it is nil.
func (d *dockerAPI) call(ctx context.Context, method, path string, in, out any) error {
	body, err := d.stream(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer body.Close()
	if out != nil {
		err = json.NewDecoder(body).Decode(out)
	}
	_, copyErr := io.Copy(io.Discard, body) // so that the connection is used again
	return errors.Join(err, copyErr)
}

// stream makes a call and returns the open response.
func (d *dockerAPI) stream(ctx context.Context, method, path string, in any) (io.ReadCloser, error) {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://docker"+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := d.client.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode >= http.StatusMultipleChoices {
		text, err := io.ReadAll(io.LimitReader(res.Body, 1000))
		return nil, errors.Join(fmt.Errorf("docker: %s %s: %s: %s", method, path, res.Status, lastWords(string(text))),
			err, res.Body.Close())
	}
	return res.Body, nil
}

func (d *dockerAPI) life(ctx context.Context) (l life, err error) {
	start := time.Now()
	var made struct{ ID string }
	err = d.call(ctx, http.MethodPost, "/containers/create", map[string]any{
		"Image": d.daemon.image, "Cmd": []string{"echo", word},
		"Labels":     map[string]string{d.daemon.label: ""},
		"HostConfig": map[string]any{"NetworkMode": "none"},
	}, &made)
	if err != nil {
		return life{}, err
	}
	path := "/containers/" + made.ID
	defer func() {
		err = errors.Join(err, d.call(ctx, http.MethodDelete, path+"?force=1", nil, nil))
		l.whole = time.Since(start)
	}()
	out, err := d.stream(ctx, http.MethodPost, path+"/attach?stream=1&stdout=1", nil)
	if err != nil {
		return life{}, err
	}
	defer out.Close()
	if err := d.call(ctx, http.MethodPost, path+"/start", nil, nil); err != nil {
		return life{}, err
	}
	const header = 8 // of each piece of output
	buf := make([]byte, header+len(word))
	_, err = io.ReadFull(out, buf)
	l.first = time.Since(start)
	if err == nil && string(buf[header:]) != word {
		err = fmt.Errorf("echo printed %q", buf[header:])
	}
	_, copyErr := io.Copy(io.Discard, out) // until it has ended
	return l, errors.Join(err, copyErr)
}

// apiBox is a container in which the API runs programs.
type apiBox struct {
	*dockerBox

	api *dockerAPI
}

func (b *apiBox) Run(ctx context.Context, args ...string) error {
	var made struct{ ID string }
	err := b.api.call(ctx, http.MethodPost, "/containers/"+b.id+"/exec",
		map[string]any{"Cmd": args, "AttachStdout": true, "AttachStderr": true}, &made)
	if err != nil {
		return err
	}
	out, err := b.api.stream(ctx, http.MethodPost, "/exec/"+made.ID+"/start", map[string]any{})
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, out)
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	var state struct{ ExitCode int }
	if err := b.api.call(ctx, http.MethodGet, "/exec/"+made.ID+"/json", nil, &state); err != nil {
		return err
	}
	if state.ExitCode != 0 {
		return fmt.Errorf("%s: exit status %d", args[0], state.ExitCode)
	}
	return nil
}

func (b *apiBox) CopyIn(context.Context, string, string) error  { return errRunsOnly }
func (b *apiBox) CopyOut(context.Context, string, string) error { return errRunsOnly }
