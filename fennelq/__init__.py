"""fennelq"""
