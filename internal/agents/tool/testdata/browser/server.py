# The web server of the tests: pages that are meant well, and pages that are not.
import http.server, os, socketserver, sys, time

class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        path, _, query = self.path.partition("?")
        if path == "/loop":
            self.send_response(302)
            self.send_header("Location", "/loop")
            self.end_headers()
        elif path == "/download":
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Disposition", "attachment; filename=evil.bin")
            self.end_headers()
            self.wfile.write(b"x" * 100000)
        elif path == "/slow":
            time.sleep(60)
        elif path == "/form":
            body = ("<title>Sent</title><p>You sent " + query.replace("<", "") + "</p>").encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(body)
        elif path == "/to-file":
            self.send_response(302)
            self.send_header("Location", "file:///etc/passwd")
            self.end_headers()
        else:
            super().do_GET()

class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True

os.chdir(os.path.dirname(os.path.abspath(__file__)))
Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
